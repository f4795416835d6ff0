"""Tied LRSA on a ball around an input: theorem 2 with bounds on Z / M that hold in the whole ball."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.lipschitz.bound import Norm, require_token_norm
from lrformer.lipschitz.lrsa import lrsa_tied
from lrformer.lipschitz.norms import max_token_norm, spectral_norm


def ratios_on_ball(
    x: Float[Tensor, "b n e"],
    w_q: Float[Tensor, "h e d"],
    *,
    frobenius: Float[Tensor, " b"],
    max_token: Float[Tensor, " b"],
    bias: Float[Tensor, "h d"] | None = None,
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
    """Return (r1, r2) with r1 <= Z / M <= r2 at x + H for every |H|_F <= frobenius, M(H) <= max_token.

    |Z(x + H) - Z(x)| <= |H W_Q|_F <= sigma |H|_F and |M(x + H) - M(x)| <= M(H), so with
    gap = sigma min(frobenius, sqrt(n) max_token) the bounds are r1 = (Z - gap)+ / (M + max_token) and
    r2 = (Z + gap) / (M - max_token)+. The set of such H is convex, as theorem 2 asks. A bias of the
    queries is part of Z and does not move it.
    """
    x, w_q = x.double(), w_q.double()
    n = x.shape[1]
    sigma = torch.linalg.matrix_norm(w_q, ord=2)
    q = torch.einsum("bne,hed->bhnd", x, w_q)
    q = q if bias is None else q + bias.double()[:, None, :]
    z = torch.linalg.vector_norm(q, dim=(-2, -1))
    m = max_token_norm(x)[:, None]
    moved = max_token[:, None]
    gap = sigma * torch.minimum(frobenius, math.sqrt(n) * max_token)[:, None]
    tiny = torch.finfo(x.dtype).tiny
    low = (z - gap).clamp_min(0) / (m + moved).clamp_min(tiny)
    high = torch.where(m > moved, (z + gap) / (m - moved).clamp_min(tiny), math.inf)
    return low, high if bias is not None else torch.minimum(high, sigma * math.sqrt(n))


def ratio_on_ball(
    x: Float[Tensor, "n e"], w_q: Float[Tensor, "e d"], *, radius: float, norm: Norm
) -> tuple[float, float]:
    """Return (r1, r2) with r1 <= Z / M <= r2 at every point of the ball of `radius` in `norm` around x."""
    require_token_norm(norm)
    reach = radius * math.sqrt(x.shape[0]) if norm == "max" else radius
    low, high = ratios_on_ball(
        x[None],
        w_q[None],
        frobenius=torch.tensor([reach], dtype=torch.float64, device=x.device),
        max_token=torch.tensor([radius], dtype=torch.float64, device=x.device),
    )
    return float(low), float(high)


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
