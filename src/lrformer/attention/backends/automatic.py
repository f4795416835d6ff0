"""The fastest way that can do a call: our kernels for 16-bit numbers on a GPU, else torch's fused attention."""

import importlib.util
from types import ModuleType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lrformer.attention.backends import sdpa

HAS_TRITON = importlib.util.find_spec("triton") is not None

NARROW = (torch.bfloat16, torch.float16)

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
    """Return softmax(-coefficient ||q_i - k_j||^2) v."""
    settings = {"attn_mask": attn_mask, "is_causal": is_causal, "dropout_p": dropout_p}
    backend = kernels_for(q, k, v, **settings) or sdpa
    return backend.squared_distance(
        q, k, v, coefficient, key_padding_mask=key_padding_mask, **settings
    )


def kernels_for(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> ModuleType | None:
    """Return the backend of our kernels where they can do this call and are the fastest."""
    dtype = sdpa.kernel_dtype(v)
    if not HAS_TRITON or not q.is_cuda or dtype not in NARROW:
        return None
    from lrformer.attention.backends import triton

    reason = triton.refusal(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, dropout_p=dropout_p, dtype=dtype
    )
    return triton if reason is None else None
