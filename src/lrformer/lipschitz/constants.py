"""The numbers that depend on the count of tokens alone: lemmas L1, L2, L4, L5 and theorems 7, 8."""

import math
from functools import cache

from lrformer.lipschitz.bound import require_tokens

# Stationary points are found to machine precision, where a maximum is flat; this covers the rounding.
_ROUND_UP = 1 + 1e-12


def lambert_w(value: float) -> float:
    """Return the principal solution w of w exp(w) = value, for value >= 0."""
    w = math.log1p(value)
    for _ in range(50):
        gap = w * math.exp(w) - value
        step = gap / (math.exp(w) * (w + 1) - (w + 2) * gap / (2 * w + 2))
        w -= step
        if abs(step) <= 1e-16 * (1 + abs(w)):
            break
    return w


def _root_of_increasing(function, low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@cache
def score_spread(n: int) -> float:
    """Return s_n, the largest standard deviation of scores under their own softmax (lemma L1)."""
    require_tokens(n)
    if n == 1:
        return 0.0
    ell = math.log(n - 1)
    t = _root_of_increasing(lambda t: (t + ell) * math.tanh(t / 2) - 2, 0.0, 10.0)
    return _ROUND_UP * (t + ell) / (2 * math.cosh(t / 2))


@cache
def mean_energy(n: int) -> float:
    """Return w_n, the largest mean energy E_P t for P ~ exp(-t), min t = 0 (lemma L2)."""
    require_tokens(n)
    return _ROUND_UP * lambert_w((n - 1) / math.e)


def anchored_energy(odds: float) -> float:
    """Return the largest E_P t for P ~ prior * exp(-t) where t = 0 at one point.

    `odds` is the prior mass of all other points over that of this point; n - 1 gives `mean_energy(n)`.
    The maximiser has one value of t at all free points, t = 1 + w, hence w exp(w + 1) = odds.
    """
    return _ROUND_UP * lambert_w(odds / math.e)


@cache
def column_energy(n: int) -> float:
    """Return C_n, the largest column sum of P * t for a Gaussian kernel's P (lemma L5)."""
    require_tokens(n)
    plain = (n - 1) * lambert_w(1 / math.e)
    if n < 8:
        return _ROUND_UP * plain
    return _ROUND_UP * min(plain, 0.5 * math.sqrt(n) * math.log(n))


@cache
def entry_spread(n: int) -> float:
    """Return e_n, the largest P_j |ln P_j - E ln P| over distributions on n points (theorem 7)."""
    require_tokens(n)
    if n == 1:
        return 0.0
    ell = math.log(n - 1)
    t = _root_of_increasing(lambda t: (t + ell) * math.tanh(t / 2) - 1, 0.0, 10.0)
    return _ROUND_UP * (t + ell) / (4 * math.cosh(t / 2) ** 2)


def cosine_column(n: int, tau: float) -> float:
    """Return kappa, n times the largest softmax weight for scores in [-tau, tau] (theorem 8)."""
    require_tokens(n)
    return n / (1 + (n - 1) * math.exp(-2 * tau))
