"""Constants of the other attentions, and how heads combine (theorems 6 to 9, section multi-head)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.lipschitz.bound import Norm, require_positive, require_token_norm, require_tokens
from lrformer.lipschitz.constants import (
    anchored_energy,
    column_energy,
    cosine_column,
    entry_spread,
    lambert_w,
    mean_energy,
)
from lrformer.lipschitz.scalar import Scalar, root, smallest


def multi_head(
    brackets: Sequence[Scalar],
    *,
    sigma_v: Sequence[Scalar],
    sigma_o: Scalar,
    sigma_vo: Sequence[Scalar],
) -> Scalar:
    """Return the constant of concat_h(P_h X W_V,h) W_O from one bracket per head, in their norm.

    Args:
        sigma_v: spectral norms of the heads' value matrices W_V,h.
        sigma_o: spectral norm of the whole output matrix.
        sigma_vo: spectral norms of the effective value matrices W_V,h W_O,h.
    """
    if not len(brackets) == len(sigma_v) == len(sigma_vo):
        raise ConfigError(
            f"brackets ({len(brackets)}), sigma_v ({len(sigma_v)}) and sigma_vo ({len(sigma_vo)}) "
            "must have one entry per head."
        )
    squares: Scalar = 0.0
    total: Scalar = 0.0
    for bracket, value, effective in zip(brackets, sigma_v, sigma_vo, strict=True):
        squares = squares + (bracket * value) ** 2
        total = total + bracket * effective
    return smallest(sigma_o * root(squares), total)


def multi_head_l2(
    heads: Sequence[Scalar], *, sigma_o: Scalar, effective_heads: Sequence[Scalar]
) -> Scalar:
    """Return the constant of several L2 heads and their output matrix.

    Args:
        heads: `l2_attention` of each head with its own T.
        effective_heads: the same with T_h replaced by T_h W_O,h.
    """
    if len(heads) != len(effective_heads):
        raise ConfigError(
            f"heads ({len(heads)}) and effective_heads ({len(effective_heads)}) must be equally many."
        )
    squares: Scalar = 0.0
    total: Scalar = 0.0
    for own, effective in zip(heads, effective_heads, strict=True):
        squares = squares + own * own
        total = total + effective
    return smallest(sigma_o * root(squares), total)


def l2_attention(
    sigma_w: Scalar, sigma_t: Scalar, sigma_wt: Scalar, *, n: int, norm: Norm
) -> Scalar:
    """Return the constant of a head with scores -|q_i - q_j|^2 and values q_j T (theorem 6).

    A temperature c on the scores cancels: it sharpens them by c and holds the energy c E|q_i - q_j|^2
    below w_n. So scores -|q_i - q_j|^2 / sqrt(p) and values x W W' W_V / sqrt(p) obey the same
    formula with T = W' W_V / sqrt(p).

    Args:
        sigma_w: spectral norm of W, where q = x W.
        sigma_t: spectral norm of T.
        sigma_wt: spectral norm of W T.
    """
    require_token_norm(norm)
    require_tokens(n)
    energy = mean_energy(n)
    if norm == "F":
        cross = energy + math.sqrt(energy * column_energy(n))
        return n**0.25 * sigma_wt + 2 * sigma_w * sigma_t * cross
    return sigma_wt + 4 * sigma_w * sigma_t * energy


def anchored_l2_attention(prior: Float[Tensor, "n n"], *, norm: Norm, num_heads: int = 1) -> float:
    """Return the constant of P(q) q for P_ij ~ prior_ij exp(-t |q_i - q_j|^2), any temperature t.

    The weight that a token gives itself is at least pi_i = prior_ii / sum_j prior_ij, and this
    anchors every term: with w_i exp(w_i + 1) = sum_{j != i} prior_ij / prior_ii,

        L_F   <= |P|_2 + 2 (w + sqrt(w C)),    |P|_2^2 <= max_j 1 + sum_{i != j} u_ij,
        L_max <= sqrt(h) (1 + 2 w) + 2 w       for h heads on orthogonal parts of q,

    u_ij = prior_ij / (prior_ii + prior_ij) and C = max_j sum_{i != j} W(prior_ij / (e prior_ii)).
    In the Frobenius norm heads on separate parts of q do not add up: one bound serves all. A prior
    of ones is theorem 6; docs/lipschitz.md has the proof of the rest.
    """
    odds, columns, energies, is_flat = _anchors(prior)
    n = len(columns)
    energy = anchored_energy(float(odds.max()))
    if norm == "max":
        return math.sqrt(num_heads) * (1 + 2 * energy) + 2 * energy
    require_token_norm(norm)
    mixing, column = 1 + float(columns.max()), float(energies.max()) * (1 + 1e-12)
    if is_flat and float(odds.max()) <= n - 1:
        # A Gaussian kernel plus a multiple of the identity is positive definite: lemma L4 applies.
        mixing = min(mixing, math.sqrt(n))
        if float(odds.max()) == n - 1:
            column = min(column, column_energy(n))
    return math.sqrt(mixing) + 2 * (energy + math.sqrt(energy * column))


def anchored_center(prior: Float[Tensor, "n n"]) -> float:
    """Return the middle of the self weights that a token can have, (1 + min_i pi_i) / 2."""
    odds, *_ = _anchors(prior)
    return (1 + 1 / (1 + float(odds.max()))) / 2


def centered_anchored_l2_attention(
    prior: Float[Tensor, "n n"], *, center: float | None = None
) -> float:
    """Return the Frobenius constant of P(q) q - m q; heads on separate parts of q share the largest.

    With pi the smallest self weight, the diagonal of P lies between pi and 1, the rest of a row sums
    to at most 1 - pi and the rest of a column to at most sum_i u_ij, so

        L_F <= max(1 - m, m - pi) + sqrt((1 - pi) max_j sum_{i != j} u_ij) + 2 (w + sqrt(w C)).

    Subtracting a multiple of q leaves the covariance term as it is.

    Args:
        center: m; by default `anchored_center(prior)`, where the first term is (1 - pi) / 2.
    """
    odds, columns, energies, _ = _anchors(prior)
    highest = float(odds.max())
    others = highest / (1 + highest)
    center = 1 - others / 2 if center is None else center
    energy, column = anchored_energy(highest), float(energies.max()) * (1 + 1e-12)
    diagonal = max(1 - center, center - (1 - others))
    mixing = diagonal + math.sqrt(others * float(columns.max()))
    return mixing + 2 * (energy + math.sqrt(energy * column))


def _anchors(prior: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return per row the odds against itself, per column sum u and sum W, and whether all is equal."""
    prior = prior.detach().double().cpu()
    n = prior.shape[0]
    own = prior.diagonal()
    if prior.shape[1] != n or not bool((own > 0).all()) or bool((prior < 0).any()):
        raise ConfigError("prior must be square, >= 0, and positive on its diagonal.")
    relative = (prior - torch.diag(own)) / own[:, None]
    pairs = relative[~torch.eye(n, dtype=torch.bool, device=prior.device)]
    is_flat = n > 1 and bool((own == own[0]).all()) and bool((pairs == pairs[0]).all())
    known = {float(r): lambert_w(float(r) / math.e) for r in relative.unique()}
    energies = torch.tensor(
        [sum(known[r] for r in column.tolist()) for column in relative.T],
        dtype=torch.float64,
        device=prior.device,
    )
    columns = (relative / (1 + relative)).sum(dim=0)
    return relative.sum(dim=1), columns, energies, is_flat


def entrywise(sigma_q: Scalar, sigma_k: Scalar, *, alpha: float, q_norm: Scalar, n: int) -> Scalar:
    """Return the bound on |dP_ij / dx_k| at an input whose queries have Frobenius norm `q_norm`.

    Theorem 7, for any W_Q, W_K and the paper's normalizer; it replaces the supplement's bound.
    """
    require_tokens(n)
    both = sigma_q + sigma_k
    return (1.25 * alpha * both * both + entry_spread(n) * sigma_q) / q_norm


def scsa(
    sigma_q: Scalar,
    sigma_k: Scalar,
    sigma_v: Scalar,
    *,
    tau: float,
    nu: float,
    eps: float,
    n: int,
    norm: Norm,
) -> Scalar:
    """Return the constant of scaled cosine attention with normalized q, k and v (theorem 8).

    Args:
        tau: the temperature of the cosine scores.
        nu: the factor on the output.
        eps: added to the squared norms; with eps = 0 there is no finite constant.
    """
    require_token_norm(norm)
    require_tokens(n)
    if eps == 0:
        return math.inf
    require_positive(tau=tau, nu=nu, eps=eps)
    scale = nu / math.sqrt(eps)
    if n == 1:
        return scale * sigma_v
    if norm == "F":
        column = math.sqrt(cosine_column(n, tau))
        return scale * (column * sigma_v + tau * (sigma_q + column * sigma_k))
    return scale * (sigma_v + tau * (sigma_q + sigma_k))


def dot_product_on_ball(
    sigma_qk: Scalar, *, radius: Scalar, head_dim: int, n: int, norm: Norm
) -> Scalar:
    """Return the bracket of dot-product attention while every token stays within `radius` of zero.

    Args:
        sigma_qk: spectral norm of W_Q W_K' (theorem 9). Without a radius there is no constant.
    """
    require_token_norm(norm)
    require_tokens(n)
    if n == 1:
        return 1.0
    slope = sigma_qk * radius * radius / math.sqrt(head_dim)
    if norm == "F":
        return math.sqrt(n) + slope * (1 + math.sqrt(n))
    return 1.0 + 2 * slope
