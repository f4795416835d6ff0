"""n is the largest number of tokens: a bound must not fall as n grows, or samples with fewer would pass it."""

import itertools
from functools import partial

import pytest

from lrformer.lipschitz import attention, lrsa

NUMBERS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 65, 197, 1000)
BRACKETS = {
    "tied": lambda q, _, a: partial(lrsa.lrsa_tied, q, alpha=a),
    "tied, away": lambda q, _, a: partial(lrsa.lrsa_tied, q, alpha=a, min_ratio=0.1, max_ratio=2.0),
    "tied, floor": lambda q, _, a: partial(lrsa.lrsa_tied_floor, q, alpha=a, floor=0.1),
    "floor": lambda q, k, a: partial(lrsa.lrsa_floor, q, k, alpha=a, floor=0.1),
    "floor, biased": lambda q, k, a: partial(
        lrsa.lrsa_floor_biased, q, k, query_bias=1.0, bias_gap=5.0, alpha=a, floor=0.1
    ),
    "floor, shared bias": lambda q, k, a: partial(
        lrsa.lrsa_floor_biased, q, k, query_bias=1.0, bias_gap=0.0, alpha=a, floor=0.1
    ),
    "nested": lambda q, k, a: partial(lrsa.lrsa_nested, q, k, kappa=0.5, alpha=a),
    "symmetric": lambda q, k, a: partial(lrsa.lrsa_symmetric, q, k, q + k, alpha=a),
    "symmetric, biased": lambda q, k, a: partial(
        lrsa.lrsa_symmetric, q, k, q + k, alpha=a, has_biases=True
    ),
    "m": lambda q, _, a: partial(lrsa.lrsa_m, q, tau=a),
    "inf": lambda q, _, a: partial(lrsa.lrsa_inf, q, alpha=a),
    "l2": lambda q, k, _: partial(attention.l2_attention, q, k, q * k),
    "scsa": lambda q, k, a: partial(attention.scsa, q, k, 1.0, tau=min(a, 20.0), nu=1.0, eps=0.1),
    "dot product": lambda q, _, a: partial(attention.dot_product_on_ball, q, radius=a, head_dim=4),
}


@pytest.mark.parametrize("norm", ["F", "max"])
@pytest.mark.parametrize("name", BRACKETS)
def test_no_bracket_falls_as_the_largest_number_of_tokens_grows(name, norm):
    for q, k, alpha in itertools.product((0.01, 1.0, 30.0), (0.01, 1.0, 30.0), (0.1, 10.0, 1e3)):
        bracket = BRACKETS[name](q, k, alpha)
        values = [float(bracket(n=n, norm=norm)) for n in NUMBERS]
        # In the Frobenius norm the inf normalizer has no theorem for two tokens or more.
        assert values == sorted(values), (q, k, alpha)


def test_factors_that_fall_with_n_are_those_of_two_tokens():
    settings = {"alpha": 1.0, "n": 50, "norm": "max"}
    symmetric = lrsa.lrsa_symmetric(1.0, 0.0, 0.0, **settings)
    assert symmetric == pytest.approx(1 + 2 * 3**0.5)
    nested = lrsa.lrsa_nested(1.0, 0.0, kappa=0.0, **settings | {"alpha": 1e-9}) - 1
    assert nested == pytest.approx(1e-9 * (2 * 1.5**0.5 + 2 * 50**0.5), rel=1e-5)
