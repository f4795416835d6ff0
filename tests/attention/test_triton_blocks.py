"""How the Triton kernels cut tokens into blocks: last blocks that are smaller, and sizes that are tuned."""

import pytest
import torch
from torch import Tensor

from lrformer.attention import lrsa_attention
from lrformer.attention.backends import resolve_backend
from tests.attention.kernel_runs import BOUND, DEVICE, draw, needs_kernels, norm_error, results

pytestmark = [pytest.mark.unhooked, pytest.mark.kernel]


def _tied(backend: str):
    function = resolve_backend(backend).squared_distance
    return lambda q, v, coefficient: function(q, q, v, coefficient)


@needs_kernels
@pytest.mark.parametrize("blocks", [(16, 32), (32, 64)])
def test_a_last_block_that_is_smaller_than_the_others_is_read_once(blocks, monkeypatch):
    """40 tokens are a whole block of 32 and 8 more, or all in what a block of 64 would leave over."""
    resolve_backend("triton")
    from lrformer.attention.backends.triton import launching

    chosen = {**(launching.FIXED or {}), "BLOCK_M": blocks[0], "BLOCK_N": blocks[1]}
    monkeypatch.setattr(launching, "FIXED", chosen)
    _, q, _, v, grad = draw("gauss", 40, 16, torch.float16, heads=1)
    coefficient = torch.full((2, 1), 0.05, device=DEVICE)
    parts = (q, v, coefficient)
    ours = results(_tied("triton"), *parts, grad=grad)
    exact = _tied("reference")
    for actual, expected in zip(
        ours, results(exact, *(part.double() for part in parts), grad=grad), strict=True
    ):
        assert norm_error(actual, expected) < BOUND[torch.float16]


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [70, 71])
def test_a_tuned_call_equals_the_next_one_of_its_kind(num_tokens):
    """The first call tries every choice of blocks, again and again, the next goes past the tuner."""
    x, q, _, v, grad = draw("gauss", num_tokens, 16, torch.bfloat16)
    alpha = torch.full((2,), 60.0, device=DEVICE)

    def call(q: Tensor, v: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
        return lrsa_attention(q, q, v, x, alpha=alpha, backend="triton")

    tuned, again = (results(call, q, v, x, alpha, grad=grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(tuned, again, strict=True))


@needs_kernels
def test_tokens_too_far_apart_for_32_bits_are_copied():
    resolve_backend("triton")
    from lrformer.attention.backends.triton import launching

    near = torch.empty_strided((1, 1, 3, 16), (0, 0, 2**29, 1), device="meta")
    far = torch.empty_strided((1, 1, 4, 16), (0, 0, 2**29, 1), device="meta")
    assert launching.rows_contiguous(near) is near
    assert launching.rows_contiguous(far).stride(-2) == 16


@needs_kernels
@pytest.mark.parametrize(
    ("num_tokens", "rows"), [(197, 16), (192, 64), (193, 16), (215, 32), (225, 64), (5, 16)]
)
def test_the_last_block_of_a_head_is_as_small_as_its_rows_are_few(num_tokens, rows):
    resolve_backend("triton")
    from lrformer.attention.backends.triton import launching

    assert launching._last({"num_tokens": num_tokens, "BLOCK_M": 64}) == rows


@needs_kernels
@pytest.mark.parametrize("num_tokens", [70, 84])
def test_a_last_block_of_fewer_rows_gives_the_same(num_tokens, monkeypatch):
    """Blocks of 64 rows and one more of 16 or 32."""
    resolve_backend("triton")
    from lrformer.attention.backends.triton import launching

    monkeypatch.setattr(launching, "FIXED", {**(launching.FIXED or {}), "BLOCK_M": 64})
    _, q, _, v, grad = draw("gauss", num_tokens, 16, torch.float16, heads=1)
    parts = (q, v, torch.full((2, 1), 0.05, device=DEVICE))
    ours = results(_tied("triton"), *parts, grad=grad)
    exact = _tied("reference")
    for actual, expected in zip(
        ours, results(exact, *(part.double() for part in parts), grad=grad), strict=True
    ):
        assert norm_error(actual, expected) < BOUND[torch.float16]
