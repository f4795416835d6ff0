"""Tied LRSA on a ball around an input: theorem 2 with bounds on Z / M that hold in the whole ball."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.lipschitz.bound import Norm, require_token_norm
from lrformer.lipschitz.lrsa import lrsa_tied
from lrformer.lipschitz.norms import max_token_norm, spectral_norm


def ratio_on_ball(
    x: Float[Tensor, "n e"], w_q: Float[Tensor, "e d"], *, radius: float, norm: Norm
) -> tuple[float, float]:
    """Return (r1, r2) with r1 <= Z / M <= r2 at every point of the ball of `radius` around x.

    For |H| <= radius in the Frobenius norm, |Z(x + H) - Z(x)| <= |H W_Q|_F <= sigma radius and
    |M(x + H) - M(x)| <= radius. In the max-token norm |H|_F <= sqrt(n) radius, so the first gap is
    sigma sqrt(n) radius. Hence r1 = (Z - gap)+ / (M + radius) and r2 = (Z + gap) / (M - radius)+,
    and r2 never needs to exceed sigma sqrt(n). The ball is convex, as theorem 2 asks.
    """
    require_token_norm(norm)
    n = x.shape[0]
    sigma = spectral_norm(w_q)
    z = float(torch.linalg.vector_norm(x.double() @ w_q.double()))
    m = float(max_token_norm(x.double()))
    gap = sigma * radius * (math.sqrt(n) if norm == "max" else 1.0)
    low = max(0.0, z - gap) / (m + radius) if m + radius > 0 else 0.0
    high = (z + gap) / (m - radius) if m > radius else math.inf
    return low, min(high, sigma * math.sqrt(n))


def lrsa_tied_on_ball(
    x: Float[Tensor, "n e"],
    w_q: Float[Tensor, "e d"],
    *,
    alpha: float,
    radius: float,
    norm: Norm,
) -> float:
    """Return the bracket of tied LRSA between points of the ball of `radius` around x, in `norm`.

    Never above the global bracket, and equal to it when the ball reaches the singular set Z = 0.
    """
    low, high = ratio_on_ball(x, w_q, radius=radius, norm=norm)
    sigma = spectral_norm(w_q)
    n = x.shape[0]
    local = lrsa_tied(sigma, alpha=alpha, n=n, norm=norm, min_ratio=low, max_ratio=high)
    return float(local)
