import math

import pytest
import torch
from torch.func import jacrev

from lrformer.core import ConfigError
from lrformer.lipschitz import (
    HeadWeights,
    dot_product_bound,
    l2_bound,
    lrsa_bound,
    maps,
    scsa_bound,
)
from lrformer.lipschitz.attention import anchored_l2_attention, l2_attention, multi_head
from lrformer.lipschitz.norms import frobenius_operator_norm

F64 = torch.float64


def heads(h=2, e=4, d=2, *, is_tied=True, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, dtype=F64, generator=generator)

    return HeadWeights(
        query=draw(h, e, d),
        key=None if is_tied else draw(h, e, d),
        value=draw(h, e, d),
        output=draw(h, d, e),
    )


def size_of(function, n=3, e=4, seed=9):
    x = torch.randn(n, e, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return float(frobenius_operator_norm(jacrev(function)(x)))


@pytest.mark.parametrize("norm", ["F", "max"])
def test_untied_lrsa_reports_infinity_with_the_way_out(norm):
    bound = lrsa_bound(heads(is_tied=False), alpha=100.0, n=5, norm=norm)
    assert bound.value == math.inf
    assert "tie q and k" in bound.reason


@pytest.mark.parametrize(
    ("settings", "theorem"),
    [
        ({"normalizer": "paper"}, "theorem 2"),
        ({"normalizer": "symmetric"}, "theorem 2"),
        ({"normalizer": "floor", "floor": 0.1}, "theorem 3, tied"),
        ({"normalizer": "m"}, "theorem 5"),
    ],
)
def test_tied_lrsa_uses_the_theorem_of_its_normalizer_and_bounds_the_jacobian(settings, theorem):
    weights = heads()
    bound = lrsa_bound(weights, alpha=5.0, n=3, norm="F", **settings)
    assert bound.reason == theorem

    def function(x):
        parts = [
            maps.lrsa(x, w, w, v @ o, alpha=5.0, **settings)
            for w, v, o in zip(weights.query, weights.value, weights.output, strict=True)
        ]
        return torch.stack(parts).sum(0)

    assert size_of(function) <= bound.value


@pytest.mark.parametrize(
    ("settings", "theorem"),
    [
        ({"normalizer": "symmetric"}, "theorem 4"),
        ({"normalizer": "floor", "floor": 0.1}, "theorem 3"),
    ],
)
def test_untied_lrsa_is_finite_with_a_normalizer_made_for_it(settings, theorem):
    bound = lrsa_bound(heads(is_tied=False), alpha=5.0, n=3, norm="max", **settings)
    assert bound.is_finite
    assert bound.reason == theorem


def test_untied_m_and_the_frobenius_norm_of_inf_have_no_theorem():
    assert not lrsa_bound(heads(is_tied=False), alpha=1.0, n=3, norm="F", normalizer="m").is_finite
    assert not lrsa_bound(heads(), alpha=1.0, n=3, norm="F", normalizer="inf").is_finite
    assert lrsa_bound(heads(), alpha=1.0, n=3, norm="max", normalizer="inf").is_finite


def test_one_wide_untied_head_is_finite_because_its_queries_are_injective():
    bound = lrsa_bound(heads(h=1, e=4, d=4, is_tied=False), alpha=1.0, n=3, norm="F")
    assert bound.is_finite
    assert "injective" in bound.reason


def test_equal_keys_count_as_tied():
    tied = heads()
    copied = HeadWeights(
        query=tied.query, key=tied.query.clone(), value=tied.value, output=tied.output
    )
    one, other = (lrsa_bound(w, alpha=7.0, n=4, norm="F") for w in (tied, copied))
    assert one == other


def test_alpha_may_differ_between_heads():
    weights = heads()
    low, high = (lrsa_bound(weights, alpha=a, n=4, norm="F").value for a in (1.0, 9.0))
    mixed = lrsa_bound(weights, alpha=torch.tensor([1.0, 9.0]), n=4, norm="F").value
    assert low < mixed < high


def test_l2_attention_needs_tied_scores_and_values_made_from_queries():
    weights = heads()
    bound = l2_bound(weights, n=3, norm="F", is_provable=True)

    def function(x):
        total = torch.zeros(3, 4, dtype=F64)
        for w, v, o in zip(weights.query, weights.value, weights.output, strict=True):
            total = total + maps.l2_attention(x, w, w.T @ v / math.sqrt(2)) @ o
        return total

    assert size_of(function) <= bound.value
    for attempt in (
        l2_bound(weights, n=3, norm="F", is_provable=False),
        l2_bound(heads(is_tied=False), n=3, norm="F", is_provable=True),
    ):
        assert attempt.value == math.inf
        assert "values" in attempt.reason


def test_cosine_attention_needs_eps_and_normalized_values():
    weights = heads(is_tied=False)
    settings = {"tau": 2.0, "nu": 1.0, "n": 3, "norm": "F"}
    bound = scsa_bound(weights, eps=0.1, **settings)

    def function(x):
        total = torch.zeros(3, 4, dtype=F64)
        for q, k, v, o in zip(
            weights.query, weights.key, weights.value, weights.output, strict=True
        ):
            total = total + maps.scsa(x, q, k, v, tau=2.0, nu=1.0, eps=0.1) @ o
        return total

    assert size_of(function) <= bound.value
    assert scsa_bound(weights, eps=0.0, **settings).value == math.inf
    assert scsa_bound(weights, eps=0.1, are_values_normalized=False, **settings).value == math.inf


def test_dot_product_attention_is_finite_only_on_a_ball():
    weights = heads(is_tied=False)
    assert dot_product_bound(weights, n=3, norm="F").value == math.inf
    on_ball = dot_product_bound(weights, n=3, norm="F", radius=2.0)
    assert on_ball.is_finite
    assert on_ball.value < dot_product_bound(weights, n=3, norm="F", radius=4.0).value
    with pytest.raises(ConfigError, match=r"radius \(-1\)"):
        dot_product_bound(weights, n=3, norm="F", radius=-1)


def test_heads_must_be_equally_many():
    with pytest.raises(ConfigError, match="one entry per head"):
        multi_head([1.0, 2.0], sigma_v=[1.0], sigma_o=1.0, sigma_vo=[1.0])


def test_an_anchored_prior_of_ones_is_theorem_6_and_heavier_self_weights_are_tighter():
    n = 17
    ones = torch.ones(n, n)
    assert anchored_l2_attention(ones, norm="F") == pytest.approx(
        l2_attention(1.0, 1.0, 1.0, n=n, norm="F")
    )
    assert anchored_l2_attention(ones, norm="max") == pytest.approx(
        l2_attention(1.0, 1.0, 1.0, n=n, norm="max")
    )
    for norm in ("F", "max"):
        constants = [
            anchored_l2_attention(ones + weight * torch.eye(n), norm=norm, num_heads=4)
            for weight in (0, 3, 15, 100)
        ]
        assert constants == sorted(constants, reverse=True)


def test_a_prior_without_self_weight_is_refused():
    with pytest.raises(ConfigError, match="positive on its diagonal"):
        anchored_l2_attention(1 - torch.eye(3), norm="F")


def test_the_output_matrix_of_all_heads_counts_in_cosine_attention():
    one = heads(h=1, is_tied=False)
    two = HeadWeights(
        query=one.query.repeat(2, 1, 1),
        key=one.key.repeat(2, 1, 1),
        value=one.value.repeat(2, 1, 1),
        output=one.output.repeat(2, 1, 1),
    )
    settings = {"tau": 2.0, "nu": 1.0, "eps": 0.1, "n": 3, "norm": "F"}
    single, double = (scsa_bound(weights, **settings).value for weights in (one, two))
    # Two equal heads add up to twice one of them.
    assert double == pytest.approx(2 * single)
