"""The paper's own formulas, kept beside the sound ones so that the two can be compared.

They are labelled `printed`. Those of attention, of the layer and the second derivative of GELU are
not valid; docs/lipschitz.md has an input that breaks each. Nothing in this package relies on them.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.lipschitz.bound import Bound
from lrformer.lipschitz.norms import max_token_norm, spectral_norm

PRINTED_GELU = 1.129
_NOT_VALID = "as printed in the paper; not valid"


def score_derivative(
    w_q: Float[Tensor, "e d"], w_k: Float[Tensor, "e d"], *, alpha: float, q_norm: float
) -> Bound:
    """Return the supplement's bound on the derivative of a score, 3 alpha (s_Q + s_K)^2 / |Q|_F."""
    both = spectral_norm(w_q) + spectral_norm(w_k)
    reason = f"{_NOT_VALID}: the derivative of 1/|Q|_F was dropped"
    return Bound(value=3 * alpha * both**2 / q_norm, norm="inf", kind="printed", reason=reason)


def weight_derivative(
    w_q: Float[Tensor, "e d"], w_k: Float[Tensor, "e d"], *, alpha: float, q_norm: float
) -> Bound:
    """Return the supplement's bound on the derivative of an attention weight, twice that of a score."""
    both = spectral_norm(w_q) + spectral_norm(w_k)
    reason = f"{_NOT_VALID} for small alpha: the derivative of 1/|Q|_F was dropped"
    return Bound(value=6 * alpha * both**2 / q_norm, norm="inf", kind="printed", reason=reason)


def lrsa_constant(
    w_q: Float[Tensor, "e d"],
    w_k: Float[Tensor, "e d"],
    *,
    alpha: float,
    x_norm: float,
    is_square_on_all: bool = False,
) -> Bound:
    """Return the paper's L_LRSA, 6 alpha / |X|_F (s_Q + s_K)^2 / |W_Q|_F.

    Args:
        x_norm: the Frobenius norm of the input; the formula depends on it, so it is no constant.
        is_square_on_all: read the misplaced square of the print as one on the whole fraction.
    """
    both = spectral_norm(w_q) + spectral_norm(w_k)
    size = float(torch.linalg.vector_norm(w_q.detach().double()))
    fraction = (both / size) ** 2 if is_square_on_all else both**2 / size
    value = 6 * alpha / x_norm * fraction if x_norm > 0 else math.inf
    reason = f"{_NOT_VALID}: needs |XW|_F >= |X|_F |W|_F, and speaks of S(X), not of S(X) V(X)"
    return Bound(value=value, norm="inf", kind="printed", reason=reason)


def layer_norm(gamma: Float[Tensor, " e"], *, eps: float) -> Bound:
    """Return the paper's constant of LayerNorm, gamma_max N / sqrt(eps): true in this norm, but loose."""
    size = float(gamma.detach().abs().max()) * gamma.numel()
    value = size / math.sqrt(eps) if eps > 0 else math.inf
    return Bound(value=value, norm="inf", kind="printed", reason="as printed; true but loose")


def mlp(sigma_1: float, sigma_2: float) -> Bound:
    """Return the paper's constant of the MLP; true in L2, not in the norm of its LayerNorm constant."""
    value = PRINTED_GELU * sigma_1 * sigma_2
    return Bound(value=value, norm="F", kind="printed", reason="as printed; true in L2")


def layer(eta_1: float, eta_2: float, l_lrsa: float, l_mlp: float) -> Bound:
    """Return the paper's constant of a layer, eta_1 eta_2 ((1 + L) + L_mlp (1 + L)) with L = L_LRSA."""
    value = eta_1 * eta_2 * ((1 + l_lrsa) + l_mlp * (1 + l_lrsa))
    reason = f"{_NOT_VALID}: L_LRSA knows nothing of W_V and the factors are in different norms"
    return Bound(value=value, norm="inf", kind="printed", reason=reason)


def gelu_second_derivative(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return the printed second derivative phi(x) (1 + sqrt 2 - x^2); the true one is phi(x) (2 - x^2)."""
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    return density * (1 + math.sqrt(2) - x.square())


def dasoulas_scores(
    scores: Float[Tensor, "*b n n"],
    x: Float[Tensor, "*b n e"],
    *,
    alpha: float,
    score_lipschitz: float,
) -> Float[Tensor, "*b n n"]:
    """Return scores normalized as by Dasoulas et al., from which the paper starts.

    alpha g / max(|g|_(2,inf), |X'|_(inf,2) L(g)), where |g|_(2,inf) is the Euclidean norm over rows
    of the largest entry in each (the convention in which the paper's (inf,2) is the max-token norm)
    and L(g) is a Lipschitz constant of the scores g from the Frobenius norm to that norm.
    """
    size = torch.linalg.vector_norm(scores.abs().amax(dim=-1), dim=-1)
    scale = torch.maximum(size, max_token_norm(x) * score_lipschitz)
    tiny = torch.finfo(scores.dtype).tiny
    return alpha * scores / scale.clamp_min(tiny)[..., None, None]
