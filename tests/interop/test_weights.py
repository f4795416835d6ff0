"""The rules for queries and keys, against slow references."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lrformer.core import make_generator
from lrformer.interop.weights import key_gauge, tied_map


def random_maps(seed: int, num_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = num_heads * head_dim
    draw = torch.randn(2, width, width, generator=make_generator(seed), dtype=torch.float64)
    return draw[0], draw[1]


@given(seed=st.integers(0, 99), num_heads=st.sampled_from([1, 2, 4]), head_dim=st.integers(1, 5))
def test_the_tied_map_is_the_nearest_positive_matrix_of_the_whole_eigenproblem(
    seed: int, num_heads: int, head_dim: int
) -> None:
    w_q, w_k = random_maps(seed, num_heads, head_dim)
    tied = tied_map(w_q, w_k, num_heads=num_heads)
    assert tied.shape == w_q.shape
    for head in range(num_heads):
        rows = slice(head * head_dim, (head + 1) * head_dim)
        symmetric = (w_q[rows].T @ w_k[rows] + w_k[rows].T @ w_q[rows]) / 2
        values, vectors = torch.linalg.eigh(symmetric)
        nearest = (vectors * values.clamp_min(0)) @ vectors.T
        torch.testing.assert_close(tied[rows].T @ tied[rows], nearest, rtol=1e-9, atol=1e-9)


def test_equal_maps_are_tied_to_themselves_up_to_a_rotation() -> None:
    w_q, _ = random_maps(0, 2, 3)
    tied = tied_map(w_q, w_q, num_heads=2)
    for rows in (slice(0, 3), slice(3, 6)):
        torch.testing.assert_close(tied[rows].T @ tied[rows], w_q[rows].T @ w_q[rows])


@pytest.mark.parametrize("key_scale", [0.25, 1.0])
def test_the_gauge_undoes_an_arbitrary_scale_between_queries_and_keys(key_scale: float) -> None:
    w_q, w_k = random_maps(1, 2, 3)
    gauge = key_gauge(w_q, w_k, num_heads=2, key_scale=key_scale)
    assert torch.equal(gauge.log2(), gauge.log2().round()), "digits of the weights would be lost"
    moved = key_gauge(w_q * 4, w_k / 4, num_heads=2, key_scale=key_scale)
    assert torch.equal(moved, gauge * 4)
    norm_q = (w_q / gauge.repeat_interleave(3).unsqueeze(-1)).view(2, -1).norm(dim=1)
    norm_k = (w_k * gauge.repeat_interleave(3).unsqueeze(-1)).view(2, -1).norm(dim=1)
    ratio = (norm_k / norm_q).sqrt() / key_scale
    assert ((ratio > 2**-0.51) & (ratio < 2**0.51)).all()


def test_a_head_of_zeros_keeps_a_finite_gauge() -> None:
    zeros = torch.zeros(4, 4)
    assert key_gauge(zeros, zeros, num_heads=2, key_scale=0.25).eq(0.25).all()
    assert tied_map(zeros, zeros, num_heads=2).eq(0).all()
