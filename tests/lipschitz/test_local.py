import pytest
import torch

from lrformer.lipschitz import (
    attack,
    lrsa,
    lrsa_tied_on_ball,
    maps,
    ratio_on_ball,
    ratios_on_ball,
    spectral_norm,
)
from lrformer.lipschitz.norms import max_token_norm

F64 = torch.float64


def sample(n=5, e=4, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, e, dtype=F64, generator=generator)
    return x, torch.randn(e, d, dtype=F64, generator=generator), generator


def on_sphere(x, generator, radius, norm):
    step = torch.randn(x.shape, dtype=F64, generator=generator)
    size = max_token_norm(step) if norm == "max" else torch.linalg.matrix_norm(step)
    return x + radius * step / size


@pytest.mark.parametrize("norm", ["F", "max"])
@pytest.mark.parametrize("radius", [0.0, 0.1, 1.0, 10.0])
def test_the_ratio_stays_between_its_bounds_everywhere_in_the_ball(norm, radius):
    x, w, generator = sample()
    low, high = ratio_on_ball(x, w, radius=radius, norm=norm)
    for _ in range(200):
        y = on_sphere(x, generator, radius, norm)
        ratio = float(torch.linalg.vector_norm(y @ w) / max_token_norm(y))
        assert low <= ratio * (1 + 1e-12)
        assert ratio <= high * (1 + 1e-12)


@pytest.mark.parametrize("norm", ["F", "max"])
def test_the_local_bracket_grows_with_the_ball_up_to_the_global_one(norm):
    x, w, _ = sample()
    radii = (1e-6, 0.05, 0.2, 1.0, 100.0)
    brackets = [lrsa_tied_on_ball(x, w, alpha=50.0, radius=r, norm=norm) for r in radii]
    assert brackets == sorted(brackets)
    assert brackets[0] < 0.5 * brackets[-1]
    whole = lrsa.lrsa_tied(spectral_norm(w), alpha=50.0, n=5, norm=norm)
    assert brackets[-1] == pytest.approx(whole)


@pytest.mark.parametrize("norm", ["F", "max"])
def test_ascent_inside_the_ball_never_passes_the_local_bracket(norm):
    identity = torch.eye(4, dtype=F64)
    for seed, radius in ((0, 0.02), (1, 0.3)):
        x, w, generator = sample(n=3, seed=seed)
        bound = lrsa_tied_on_ball(x, w, alpha=20.0, radius=radius, norm=norm)

        def target(free, x=x, w=w, radius=radius, bound=bound):
            step = free[0]
            size = max_token_norm(step) if norm == "max" else torch.linalg.matrix_norm(step)
            y = x + radius * step / size.clamp_min(1.0)
            return (lambda z: maps.lrsa(z, w, w, identity, alpha=20.0)), y, bound

        start = torch.randn(3, 4, dtype=F64, generator=generator)
        found = attack(target, [start], norm=norm, generator=generator, num_steps=30)
        assert found.ratio <= 1


def test_a_zero_sample_falls_back_to_the_global_bracket():
    _, w, _ = sample()
    bracket = lrsa_tied_on_ball(torch.zeros(5, 4, dtype=F64), w, alpha=2.0, radius=0.0, norm="F")
    assert bracket == pytest.approx(lrsa.lrsa_tied(spectral_norm(w), alpha=2.0, n=5, norm="F"))


def test_a_bias_can_take_the_ratio_above_what_the_weights_allow():
    x, w, _ = sample()
    bias = torch.full((1, 3), 50.0, dtype=F64)
    nothing = torch.zeros(1, dtype=F64)
    low, high = ratios_on_ball(x[None], w[None], frobenius=nothing, max_token=nothing, bias=bias)
    ratio = float(torch.linalg.vector_norm(x @ w + bias) / max_token_norm(x))
    assert float(low) == pytest.approx(ratio)
    assert float(high) == pytest.approx(ratio)
    assert ratio > spectral_norm(w) * x.shape[0] ** 0.5


def test_tokens_that_all_move_by_the_longest_step_shrink_the_query_by_the_root_of_their_number():
    x, w = torch.ones(1, 4, 1, dtype=F64), torch.ones(1, 1, 1, dtype=F64)
    one, half = torch.tensor([1.0], dtype=F64), torch.tensor([0.5], dtype=F64)
    # |Q| = 2 falls to 1, by either limit on the step, and the longest token grows from 1 to at most 1.5.
    for frobenius in (one, 3 * one):
        low, _ = ratios_on_ball(x, w, frobenius=frobenius, max_token=half)
        assert float(low) == pytest.approx(2 / 3)
