"""The definitions, with the whole matrix of weights in memory: any dtype, forward-mode AD, attention maps."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lrformer.attention.masks import masked_softmax, merge_masks


def dot_product(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h m d"],
    v: Float[Tensor, "b h m d"],
    *,
    scale: float,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    key_padding_mask: Bool[Tensor, "b m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "b h n d"]:
    """Return softmax(scale q k^T) v."""
    weights = dot_product_weights(
        q,
        k,
        scale=scale,
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
    )
    return _average(weights, v, dropout_p)


def dot_product_weights(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h m d"],
    *,
    scale: float,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    key_padding_mask: Bool[Tensor, "b m"] | None = None,
) -> Float[Tensor, "b h n m"]:
    """Return softmax(scale q k^T), in float32 or better."""
    q, k = _widen(q), _widen(k)
    mask = merge_masks(
        (q.shape[-2], k.shape[-2]),
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
        device=q.device,
    )
    with _full_precision(q):
        return masked_softmax(scale * (q @ k.mT), mask)


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
    weights = squared_distance_weights(
        q,
        k,
        coefficient,
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
    )
    return _average(weights, v, dropout_p)


def squared_distance_weights(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h m d"],
    coefficient: Float[Tensor, "b h"],
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    key_padding_mask: Bool[Tensor, "b m"] | None = None,
) -> Float[Tensor, "b h n m"]:
    """Return softmax(-coefficient ||q_i - k_j||^2), in float32 or better.

    The distances are taken in the matrix form of the paper (eq. matrix-form). Queries and keys are
    shifted by the mean key first: the distances do not change, their cancellation error does.
    """
    q, k = _widen(q), _widen(k)
    shift = k.mean(-2, keepdim=True).detach()
    q, k = q - shift, k - shift
    mask = merge_masks(
        (q.shape[-2], k.shape[-2]),
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
        device=q.device,
    )
    with _full_precision(q):
        # The row norms are products with ones because torch 2.11 compiles the plain broadcast of a row
        # norm wrongly on CUDA at 196, 197 and 200 tokens (docs/paper.md).
        ones = torch.ones_like(q[..., :1, :])
        distances = q.square() @ ones.mT - 2 * (q @ k.mT) + ones @ k.square().mT
        return masked_softmax(-coefficient[..., None, None] * distances, mask)


def _average(
    weights: Float[Tensor, "b h n m"], v: Float[Tensor, "b h m d"], dropout_p: float
) -> Float[Tensor, "b h n d"]:
    """Return the values averaged by `weights`, in the values' dtype."""
    weights = F.dropout(weights, dropout_p, training=dropout_p > 0)
    with _full_precision(v):
        return (weights @ v.to(weights.dtype)).to(v.dtype)


def _full_precision(x: Tensor) -> torch.autocast:
    """Return a context in which products keep the dtype of their factors, whatever autocast says."""
    return torch.autocast(x.device.type, enabled=False)


def _widen(x: Tensor) -> Tensor:
    """Return `x` in float32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
