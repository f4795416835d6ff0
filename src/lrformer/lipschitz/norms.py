"""Norms of token matrices, of weights and of small exact Jacobians."""

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError

# Covers the rounding of a Gram iteration in float32, so that its result stays an upper bound.
_FLOAT32_MARGIN = 1 + 1e-6


def max_token_norm(x: Float[Tensor, "*b n e"]) -> Float[Tensor, "*b"]:
    """Return M(x), the largest Euclidean norm of a token, one number per sample."""
    return torch.linalg.vector_norm(x, dim=-1).amax(dim=-1)


def frobenius_norm(x: Float[Tensor, "*b n e"]) -> Float[Tensor, "*b"]:
    """Return the Frobenius norm over tokens and channels, one number per sample."""
    return torch.linalg.vector_norm(x, dim=(-2, -1))


def spectral_norm(weight: Float[Tensor, "m n"]) -> float:
    """Return the largest singular value, by a singular value decomposition in float64."""
    return float(torch.linalg.matrix_norm(weight.detach().double(), ord=2))


def smallest_singular_value(weight: Float[Tensor, "m n"]) -> float:
    """Return inf |x W| / |x| over row vectors x: zero as soon as W has fewer columns than rows."""
    if weight.shape[1] < weight.shape[0]:
        return 0.0
    return float(torch.linalg.svdvals(weight.detach().double())[-1])


def gram_spectral_norm(
    weight: Float[Tensor, "*b m n"], *, num_steps: int = 6
) -> Float[Tensor, "*b"]:
    """Return an upper bound on the largest singular value that training can differentiate.

    With G = W'W and m = 2^num_steps, sigma(W) <= |G^m|_F^(1/2m); the overshoot is at most
    rank^(1/4m), 2.4% for rank 384 and six steps. Powers are rescaled on the way, so nothing
    overflows. Runs in float32 or better, whatever autocast says; the last digits are covered by
    a factor 1 + 1e-6, unless TF32 products are allowed, which round in the fourth. A certificate at
    evaluation takes float64 instead.
    """
    if num_steps < 1:
        raise ConfigError(f"num_steps ({num_steps}) must be at least 1.")
    with torch.autocast(weight.device.type, enabled=False):
        weight = weight if weight.dtype == torch.float64 else weight.float()
        tiny = torch.finfo(weight.dtype).tiny
        wide = weight if weight.shape[-2] <= weight.shape[-1] else weight.mT
        gram = wide @ wide.mT
        log_scale = torch.zeros(weight.shape[:-2], dtype=weight.dtype, device=weight.device)
        for _ in range(num_steps):
            scale = torch.linalg.matrix_norm(gram).clamp_min(tiny)
            gram = gram / scale[..., None, None]
            gram = gram @ gram
            log_scale = 2 * (log_scale + scale.log())
        log_norm = log_scale + torch.linalg.matrix_norm(gram).clamp_min(tiny).log()
        return (log_norm / 2 ** (num_steps + 1)).exp() * _FLOAT32_MARGIN


def frobenius_operator_norm(jacobian: Float[Tensor, "m o n d"]) -> Float[Tensor, ""]:
    """Return the exact operator norm of a Jacobian between Frobenius norms; differentiable."""
    rows = jacobian.shape[0] * jacobian.shape[1]
    return torch.linalg.matrix_norm(jacobian.reshape(rows, -1), ord=2)


def max_token_operator_norm(
    jacobian: Float[Tensor, "m o n d"],
    *,
    num_steps: int = 20,
    num_restarts: int = 4,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """Return a lower bound, in practice attained, on the operator norm between max-token norms.

    For output token i and a unit vector u, sum_j |J_ij' u| is what the best input of norm one
    reaches in the direction u; u and that input are improved in turn. Differentiable with u fixed.
    """
    blocks = jacobian.permute(0, 2, 1, 3)
    with torch.no_grad():
        fixed = blocks.detach()
        shape = (num_restarts, fixed.shape[0], fixed.shape[2])
        u = torch.randn(shape, dtype=fixed.dtype, device=fixed.device, generator=generator)
        for _ in range(num_steps):
            u = torch.nn.functional.normalize(u, dim=-1)
            best = torch.nn.functional.normalize(torch.einsum("ijod,rio->rijd", fixed, u), dim=-1)
            u = torch.einsum("ijod,rijd->rio", fixed, best)
        u = torch.nn.functional.normalize(u, dim=-1)
    reached = torch.linalg.vector_norm(torch.einsum("ijod,rio->rijd", blocks, u), dim=-1).sum(-1)
    return reached.amax()


def max_token_operator_ceiling(jacobian: Float[Tensor, "m o n d"]) -> Float[Tensor, ""]:
    """Return an upper bound on the same norm: the largest row sum of the blocks' spectral norms."""
    blocks = torch.linalg.matrix_norm(jacobian.permute(0, 2, 1, 3), ord=2)
    return blocks.sum(dim=1).amax()
