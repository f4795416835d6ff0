"""Brackets of the LRSA theorems: bounds for one head whose value matrix has spectral norm one.

Every function takes spectral norms (floats, or 0-dim tensors when a gradient is wanted), the largest
number of tokens `n` and the norm, and returns B with Lip(P V) <= B * sigma(W_V). They hold for every
additive epsilon >= 0 in the denominator. A bias shared by tied q and k changes nothing; with independent
W_Q and W_K biases need a floor (`lrsa_floor_biased`) or the symmetric norm. Proofs: docs/lipschitz.md.
"""

import math

from lrformer.lipschitz.bound import Norm, require_positive, require_token_norm, require_tokens
from lrformer.lipschitz.constants import column_energy, mean_energy, score_spread
from lrformer.lipschitz.scalar import Scalar, largest, plain, root, smallest

# A sample may have fewer tokens than n, so no bracket may fall as n grows: factors that do are taken at
# two tokens, the fewest for which they are needed.
_FEWEST = 2


def lrsa_tied(
    sigma_q: Scalar,
    *,
    alpha: float,
    n: int,
    norm: Norm,
    min_ratio: Scalar = 0.0,
    max_ratio: Scalar | None = None,
) -> Scalar:
    """Return the bracket for W_Q = W_K and the paper's normalizer (theorem 2), on all inputs.

    Args:
        min_ratio: a lower bound on Z / M over a convex region; 0 means all of space.
        max_ratio: an upper bound on Z / M over that region; by default sigma_q sqrt(n).
    """
    _check(norm, n, alpha=alpha)
    if n == 1:
        return 1.0
    spread = score_spread(n)
    highest = sigma_q * math.sqrt(n)
    if max_ratio is not None:
        highest = smallest(highest, max_ratio)
    is_away = plain(min_ratio) > 0
    if norm == "F":
        scores = 2 * (1 + math.sqrt(2)) * alpha * sigma_q
        size = 2 * alpha * sigma_q
        if is_away:
            scores = smallest(scores, _away_frobenius(sigma_q, root(alpha / min_ratio), n))
            size = smallest(size, sigma_q * math.sqrt(n) * spread / min_ratio)
        longest = smallest(2 * alpha * highest, math.sqrt(n) * spread)
        return n**0.25 + scores + size + longest
    scores = 4 * alpha * sigma_q
    size = math.sqrt(n) * alpha * sigma_q
    if is_away:
        scores = smallest(scores, 4 * sigma_q * root(alpha * mean_energy(n) / min_ratio))
        size = smallest(size, math.sqrt(n) * sigma_q * spread / min_ratio)
    return 1.0 + scores + size + smallest(alpha * highest, spread)


def lrsa_tied_floor(sigma_q: Scalar, *, alpha: float, floor: Scalar, n: int, norm: Norm) -> Scalar:
    """Return the bracket for W_Q = W_K and Z' = max(Z, floor * M); grows with the root of alpha."""
    _check(norm, n, alpha=alpha, floor=plain(floor))
    if n == 1:
        return 1.0
    spread, rn = score_spread(n), math.sqrt(n)
    if norm == "F":
        scores = smallest(
            2 * (1 + math.sqrt(2)) * alpha * sigma_q,
            _away_frobenius(sigma_q, root(alpha / floor), n),
        )
        free = sigma_q * smallest(2.0 * alpha, rn * spread / floor)
        floored = smallest(2 * alpha * floor, rn * spread)
        return (
            n**0.25 + scores + largest(free, floored) + rn * smallest(2 * alpha * sigma_q, spread)
        )
    scores = smallest(4 * alpha * sigma_q, 4 * sigma_q * root(alpha * mean_energy(n) / floor))
    free = rn * sigma_q * smallest(1.0 * alpha, spread / floor)
    floored = smallest(alpha * floor, spread)
    return 1.0 + scores + largest(free, floored) + smallest(rn * alpha * sigma_q, spread)


def lrsa_floor(
    sigma_q: Scalar, sigma_k: Scalar, *, alpha: float, floor: Scalar, n: int, norm: Norm
) -> Scalar:
    """Return the bracket for independent W_Q, W_K and Z' = max(Z, floor * M) (theorem 3).

    With an injective W_Q (head width >= embed_dim) the paper's normalizer obeys it too, with the
    smallest singular value of W_Q as `floor`.
    """
    _check(norm, n, alpha=alpha, floor=plain(floor))
    if n == 1:
        return 1.0
    spread, rn, both = score_spread(n), math.sqrt(n), sigma_q + sigma_k
    if norm == "F":
        reach = 1 + rn * sigma_k / floor
        scores = 2 * alpha * (sigma_q * both / floor + sigma_k * reach)
        size = 1 + largest(1.0, sigma_q / floor)
        return rn + scores + size * smallest(rn * spread, alpha * both * reach)
    scores = 2 * alpha * both * both / floor
    size = 1 + largest(1.0, rn * sigma_q / floor)
    return 1.0 + scores + size * smallest(spread, alpha * both * both / (2 * floor))


def lrsa_floor_biased(
    sigma_q: Scalar,
    sigma_k: Scalar,
    *,
    query_bias: Scalar,
    bias_gap: Scalar,
    alpha: float,
    floor: Scalar,
    n: int,
    norm: Norm,
) -> Scalar:
    """Return the bracket of theorem 3 for q = x W_Q + b_Q and k = x W_K + b_K.

    Z' = max(|Q|_F, r0 M) is at least r0 M and at least sqrt(n) (|b_Q| - sigma_Q M), hence never below
    the value at which the two meet; so M c |q_i - k_j| <= alpha G with

        G = (sigma_Q + sigma_K) / r0 + |b_Q - b_K| (r0 + sqrt(n) sigma_Q) / (r0 sqrt(n) |b_Q|),

    the second term at n = 2, where it is largest.

    Args:
        query_bias: |b_Q|. Without one, a key bias alone makes the Jacobian diverge as X -> 0.
        bias_gap: |b_Q - b_K|; zero for a shared bias.
    """
    _check(norm, n, alpha=alpha, floor=plain(floor))
    if n == 1:
        return 1.0
    spread, rn, both = score_spread(n), math.sqrt(n), sigma_q + sigma_k
    reach = both / floor
    if plain(bias_gap) > 0:
        if plain(query_bias) == 0:
            return math.inf
        few = math.sqrt(_FEWEST)
        reach = reach + bias_gap * (floor + few * sigma_q) / (floor * few * query_bias)
        deviation = smallest(spread, 2 * alpha * sigma_k * reach)
    else:
        deviation = smallest(spread, alpha * both * both / (2 * floor))
    if norm == "F":
        size = 1 + largest(1.0, sigma_q / floor)
        return rn + 2 * alpha * reach * (sigma_q + rn * sigma_k) + size * rn * deviation
    size = 1 + largest(1.0, rn * sigma_q / floor)
    return 1.0 + 2 * alpha * reach * both + size * deviation


def lrsa_nested(
    sigma_q: Scalar, sigma_k: Scalar, *, kappa: Scalar, alpha: float, n: int, norm: Norm
) -> Scalar:
    """Return the bracket for |x W_K| <= kappa |x W_Q| at every x, paper's normalizer (theorem 1b)."""
    _check(norm, n, alpha=alpha)
    if n == 1:
        return 1.0
    spread, rn, wide = score_spread(n), math.sqrt(n), 1 + kappa * kappa
    row = root((1 + 1 / _FEWEST) * wide)
    if norm == "F":
        scores = 2 * alpha * (row * sigma_q + root(2 * wide) * sigma_k)
        size = 2 * wide * alpha * sigma_q
        return rn + scores + size + smallest(rn * size, rn * spread)
    scores = 2 * alpha * row * (sigma_q + sigma_k)
    size = rn * wide * alpha * sigma_q
    return 1.0 + scores + size + smallest(size, spread)


def lrsa_symmetric(
    sigma_q: Scalar,
    sigma_k: Scalar,
    sigma_qk: Scalar,
    *,
    alpha: float,
    n: int,
    norm: Norm,
    has_biases: bool = False,
) -> Scalar:
    """Return the bracket for Z = sqrt((|Q|^2 + |K|^2) / 2) and independent W_Q, W_K (theorem 4).

    Args:
        sigma_qk: spectral norm of the two matrices side by side, [W_Q W_K].
        has_biases: whether q and k have biases, whatever they are. The theorem is about q and k as they
            are, except where it says Z <= sigma_qk sqrt(n / 2) M, which is then left out.
    """
    _check(norm, n, alpha=alpha)
    if n == 1:
        return 1.0
    spread, rn, row = score_spread(n), math.sqrt(n), math.sqrt(2 + 2 / _FEWEST)
    if norm == "F":
        size = 2 * math.sqrt(2) * alpha * sigma_qk
        scores = 2 * alpha * (row * sigma_q + 2 * sigma_k)
        longest = rn * (spread if has_biases else smallest(size, spread))
        return rn + scores + size + longest
    size = math.sqrt(2) * alpha * sigma_qk * rn
    longest = spread if has_biases else smallest(size, spread)
    return 1.0 + 2 * alpha * row * (sigma_q + sigma_k) + size + longest


def lrsa_m(sigma_q: Scalar, *, tau: float, n: int, norm: Norm) -> Scalar:
    """Return the bracket for W_Q = W_K and scores -tau |q_i - q_j|^2 / M^2 (theorem 5)."""
    _check(norm, n, tau=tau)
    if n == 1:
        return 1.0
    spread, rn = score_spread(n), math.sqrt(n)
    small = 2 * tau * sigma_q * sigma_q
    if norm == "F":
        scores = smallest(
            _away_frobenius(sigma_q, math.sqrt(tau), n), small * (2 + math.sqrt(2 * n))
        )
        return n**0.25 + scores + 2 * rn * smallest(small, spread)
    scores = smallest(4 * sigma_q * math.sqrt(tau * mean_energy(n)), 4 * small)
    return 1.0 + scores + 2 * smallest(small, spread)


def lrsa_inf(sigma_q: Scalar, *, alpha: float, n: int, norm: Norm) -> Scalar:
    """Return the bracket for W_Q = W_K and Z = max_i |q_i|; infinite in the Frobenius norm: no theorem."""
    _check(norm, n, alpha=alpha)
    if n == 1:
        return 1.0
    if norm == "F":
        return math.inf
    slope = alpha * sigma_q
    far = 8 * math.sqrt((n - 1) / n) * slope
    return 1.0 + far + 2 * slope + smallest(2 * slope, score_spread(n))


def _away_frobenius(sigma_q: Scalar, root_of_scale: Scalar, n: int) -> Scalar:
    """Return 2 sigma sqrt(c) M (sqrt(w_n) + sqrt(C_n)), the score term by lemmas L2 and L5."""
    return 2 * sigma_q * root_of_scale * (math.sqrt(mean_energy(n)) + math.sqrt(column_energy(n)))


def _check(norm: Norm, n: int, **positive: float) -> None:
    require_token_norm(norm)
    require_tokens(n)
    require_positive(**positive)
