import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lrformer.core import ConfigError
from lrformer.lipschitz.constants import (
    anchored_energy,
    column_energy,
    cosine_column,
    entry_spread,
    lambert_w,
    mean_energy,
    score_spread,
)


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.1, 1 / math.e, 1.0, 70.0, 1e6])
def test_lambert_w_solves_its_equation(value):
    w = lambert_w(value)
    assert w * math.exp(w) == pytest.approx(value, rel=1e-13, abs=1e-16)


def test_one_token_has_no_spread_and_no_energy():
    constants = (score_spread, mean_energy, column_energy, entry_spread)
    assert [constant(1) for constant in constants] == [0.0] * 4


@pytest.mark.parametrize("n", [2, 3, 17, 65, 197])
def test_constants_equal_a_search_over_a_fine_grid(n):
    t = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    ell = math.log(n - 1)
    spread = ((t + ell) / (2 * torch.cosh(t / 2))).max()
    entry = ((t + ell) / (4 * torch.cosh(t / 2) ** 2)).max()
    energy = ((n - 1) * t * torch.exp(-t) / (1 + (n - 1) * torch.exp(-t))).max()
    for constant, found in ((score_spread, spread), (entry_spread, entry), (mean_energy, energy)):
        assert float(found) <= constant(n) <= float(found) * (1 + 1e-7)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=30))
def test_no_scores_spread_further_than_the_lemmas_say(scores):
    s = torch.tensor(scores, dtype=torch.float64)
    n, p = len(scores), torch.softmax(s, 0)
    mean = (p * s).sum()
    assert float((p * (s - mean).square()).sum().sqrt()) <= score_spread(n)
    assert float((p * (s.max() - s)).sum()) <= mean_energy(n)
    log_p = torch.log_softmax(s, 0)
    assert float((p * (log_p - (p * log_p).sum()).abs()).max()) <= entry_spread(n)


@given(
    st.integers(2, 12), st.integers(1, 3), st.floats(0.01, 30), st.integers(0, 2**31), st.booleans()
)
def test_columns_of_a_gaussian_kernel_stay_below_the_lemmas(n, d, scale, seed, is_star):
    q = scale * torch.randn(
        n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    if is_star:
        q[0] = q[1:].mean(0)
    energy = torch.cdist(q, q).square()
    p = torch.softmax(-energy, 1)
    assert float(p.sum(0).max()) <= math.sqrt(n) * (1 + 1e-12)
    assert float((p * energy).sum(0).max()) <= column_energy(n)


def test_a_heavier_self_weight_lowers_the_energy_and_equal_weights_give_the_lemma():
    assert anchored_energy(64.0) == mean_energy(65)
    energies = [anchored_energy(64.0 / weight) for weight in (1, 4, 16, 64)]
    assert energies == sorted(energies, reverse=True)
    assert energies[-1] == pytest.approx(lambert_w(1 / math.e))


@given(st.integers(1, 50), st.floats(0.01, 20), st.integers(0, 2**31))
def test_no_cosine_weight_exceeds_kappa_over_n(n, tau, seed):
    generator = torch.Generator().manual_seed(seed)
    s = tau * (2 * torch.rand(n, dtype=torch.float64, generator=generator) - 1).sign()
    assert float(torch.softmax(s, 0).max()) <= cosine_column(n, tau) / n * (1 + 1e-12)


def test_no_tokens_is_an_error():
    with pytest.raises(ConfigError, match=r"n \(0\) must be at least 1"):
        score_spread(0)
