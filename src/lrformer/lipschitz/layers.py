"""Exact or sound constants of the layers around attention (theorem 10, activations, embeddings)."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.lipschitz.norms import spectral_norm
from lrformer.lipschitz.scalar import Scalar

# Suprema of |f'|, rounded up. GELU by erf is (1 + erf 1)/2 + 1/(e sqrt(pi)), reached at sqrt(2).
ACTIVATIONS: dict[str, float] = {
    "gelu": 1.128904145186,
    "gelu_tanh": 1.12900,
    "silu": 1.09984,
    "quick_gelu": 1.09984,
    "relu": 1.0,
    "identity": 1.0,
}


def activation_constant(name: str) -> float:
    """Return sup |f'| of an activation by name, rounded up."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation ('{name}') must be one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def layer_norm(gamma: Float[Tensor, " e"], *, eps: float) -> float:
    """Return the exact constant of LayerNorm, |diag(gamma) C|_2 / sqrt(eps), in both token norms."""
    return layer_norm_gain(gamma) / math.sqrt(eps) if eps > 0 else math.inf


def layer_norm_gain(gamma: Float[Tensor, " e"]) -> float:
    """Return |diag(gamma) C|_2 with C = I - 11'/N, the part of the constant that eps does not touch."""
    gamma = gamma.detach().double()
    return spectral_norm(torch.diag(gamma) - gamma[:, None] / gamma.numel())


def layer_norm_on_ball(
    x: Float[Tensor, "*b n e"],
    gamma: Float[Tensor, " e"],
    *,
    eps: float,
    radius: float | Float[Tensor, "*b"],
) -> Float[Tensor, "*b"]:
    """Return LayerNorm's constant on the ball of `radius` around each sample, in either token norm.

    The standard deviation of a token is 1/sqrt(N)-Lipschitz, and in both balls a token moves by at
    most `radius`; the constant is that of the token whose deviation can come nearest to zero.
    """
    deviation = x.double().std(dim=-1, unbiased=False)
    reach = radius[..., None] if isinstance(radius, Tensor) else radius
    lowest = (deviation - reach / math.sqrt(x.shape[-1])).clamp_min(0)
    return (layer_norm_gain(gamma) / (lowest.square() + eps).sqrt()).amax(dim=-1)


def layer_norm_entrywise(gamma: Float[Tensor, " e"], *, eps: float) -> float:
    """Return a bound on LayerNorm between largest-entry norms; the paper has gamma_max N / sqrt(eps).

    It is (gamma_max / sqrt(eps)) max_s sqrt(1 - s) (2 (N - 1) / N + s (1 + sqrt(N)) / 2), 0 <= s <= 1.
    """
    if eps <= 0:
        return math.inf
    width = gamma.numel()
    constant, slope = 2 * (width - 1) / width, (1 + math.sqrt(width)) / 2
    # sqrt(1 - s)(a + b s) is concave on [0, 1]; its derivative vanishes at (2 b - a) / (3 b).
    s = min(1.0, max(0.0, (2 * slope - constant) / (3 * slope)))
    peak = math.sqrt(1 - s) * (constant + slope * s)
    return float(gamma.detach().double().abs().max()) / math.sqrt(eps) * peak


def rms_norm(gamma: Float[Tensor, " e"], *, eps: float) -> float:
    """Return the exact constant of RMSNorm, max |gamma| / sqrt(eps), in both token norms."""
    return float(gamma.detach().double().abs().max()) / math.sqrt(eps) if eps > 0 else math.inf


def mlp(sigma_1: Scalar, sigma_2: Scalar, *, activation: str = "gelu") -> Scalar:
    """Return the constant of W_2 act(W_1 x + b_1) + b_2 per token, in both token norms, at evaluation."""
    return activation_constant(activation) * sigma_1 * sigma_2


def patch_embedding(weight: Float[Tensor, "e c k l"]) -> tuple[float, float]:
    """Return (L2, L1) of a patch embedding whose stride is its kernel: its extreme singular values.

    L1 is zero when there are fewer channels than pixels in a patch: then images collapse.
    """
    flat = weight.detach().double().flatten(1)
    values = torch.linalg.svdvals(flat)
    is_injective = flat.shape[0] >= flat.shape[1]
    return float(values[0]), float(values[-1]) if is_injective else 0.0


def input_normalization(std: Float[Tensor, " c"]) -> tuple[float, float]:
    """Return (L2, L1) of (x - mean) / std per channel: 1 / min std and 1 / max std."""
    if bool((std <= 0).any()):
        raise ConfigError(f"std ({std.tolist()}) must be positive in every channel.")
    return 1 / float(std.min()), 1 / float(std.max())


def pooling(kind: Literal["mean", "cls"], *, n: int, norm: Literal["F", "max"]) -> float:
    """Return the constant of pooling n tokens into one, from the token norm to the Euclidean norm."""
    return 1 / math.sqrt(n) if kind == "mean" and norm == "F" else 1.0
