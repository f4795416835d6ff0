"""Kernels of our own for squared distances: no padded copies, one projection less to read where q = k.

Imported only where it is used: Triton is not on every machine, and its import takes a moment.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lrformer.attention.backends import sdpa
from lrformer.attention.backends.triton import differentiable, operators
from lrformer.attention.backends.triton.launching import IS_INTERPRETED, why_unusable
from lrformer.core import ConfigError

MAX_WIDTH = 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
UNUSABLE = why_unusable()

# Torch's fused dot product has no bias, and nothing here could make it faster.
dot_product = sdpa.dot_product


def squared_distance(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h m d"],
    v: Float[Tensor, "b h m d"],
    coefficient: Float[Tensor, "b h"],
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    key_padding_mask: Bool[Tensor, "b m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "b h n d"]:
    """Return softmax(-coefficient ||q_i - k_j||^2) v.

    Tied queries and keys without padding have kernels of their own. float32 is multiplied in full
    precision, and its tokens are shifted by the mean key first, which changes no distance.
    """
    reason = refusal(
        q,
        k,
        v,
        attn_mask=attn_mask,
        is_causal=is_causal,
        dropout_p=dropout_p,
        dtype=sdpa.kernel_dtype(v),
    )
    if reason is not None:
        raise ConfigError(f"backend ('triton') {reason}; use backend='auto' or 'sdpa'.")
    is_tied = k is q
    if q.dtype == torch.float32:
        shift = k.mean(-2, keepdim=True).detach()
        q, k = q - shift, k - shift
    dtype = sdpa.kernel_dtype(v)
    q, v, coefficient = q.to(dtype), v.to(dtype), coefficient.float()
    if is_tied and key_padding_mask is None:
        return tied_squared_distance(q, v, coefficient, squared_norms(q), None)
    k = q if is_tied else k.to(dtype)
    has_backward = _has_backward(q, k, v, coefficient)
    return differentiable.squared_distance(q, k, v, coefficient, key_padding_mask, has_backward)


def squared_norms(q: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n"]:
    """Return ||q_i||^2 of every token in float32, without a gradient."""
    return operators.squared_norms(q.detach())


def tied_squared_distance(
    q: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    coefficient: Float[Tensor, "b h"],
    squares: Float[Tensor, "b h n"],
    slope: Float[Tensor, "b h"] | None,
) -> Float[Tensor, "b h n d"]:
    """Return softmax(-coefficient ||q_i - q_j||^2) v for calls that `refusal` lets through.

    Args:
        squares: The `squared_norms` of q.
        slope: (dc / d||Q||) / ||Q|| where the coefficient c was computed from `squares`, through which
            nothing flows back: the gradient of q then has that part too, at no cost.
    """
    has_backward = _has_backward(q, v, coefficient)
    return differentiable.tied_squared_distance(q, v, coefficient, squares, slope, has_backward)


def _has_backward(*parts: Tensor) -> bool:
    """Return whether a gradient may be asked for; inside vmap a tensor does not know what is around it."""
    is_asked = differentiable.is_transformed() or any(part.requires_grad for part in parts)
    return torch.is_grad_enabled() and is_asked


def refusal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
    dtype: torch.dtype,
) -> str | None:
    """Return why the kernels cannot do this call, or None."""
    if q.device.type != "cuda" and not IS_INTERPRETED:
        return f"runs on a CUDA device, and q is on {q.device}"
    if UNUSABLE is not None:
        return UNUSABLE
    if dtype not in DTYPES:
        return f"has no kernel for {dtype}"
    if q.shape[-1] > MAX_WIDTH:
        return f"has no kernel for heads wider than {MAX_WIDTH}, and these have {q.shape[-1]}"
    if q.shape != k.shape:
        return f"needs as many keys as queries, not {k.shape[-2]} and {q.shape[-2]}"
    if q.shape != v.shape:
        return f"needs values as wide as the keys, not {v.shape[-1]} and {q.shape[-1]}"
    if attn_mask is not None or is_causal:
        return "takes key_padding_mask and no other mask"
    if dropout_p > 0:
        return f"has no dropout (dropout_p is {dropout_p})"
    return None
