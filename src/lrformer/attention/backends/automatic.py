"""The fastest way that can do a call: our kernels for 16-bit numbers on a GPU, else torch's fused attention."""

import importlib.util

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lrformer.attention.backends import sdpa

HAS_TRITON = importlib.util.find_spec("triton") is not None

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
    squared_distance = sdpa.squared_distance
    dtype = sdpa.kernel_dtype(v)
    if HAS_TRITON and q.is_cuda and dtype in (torch.bfloat16, torch.float16):
        from lrformer.attention.backends import triton

        if triton.refusal(q, k, v, dtype=dtype, **settings) is None:
            squared_distance = triton.squared_distance
    return squared_distance(q, k, v, coefficient, key_padding_mask=key_padding_mask, **settings)
