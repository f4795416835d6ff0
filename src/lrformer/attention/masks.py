"""Masks in one vocabulary: True in a padding mask means padding, True in a boolean attention mask means attend."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lrformer.core import ConfigError

AttentionMask = Bool[Tensor, "*batch n m"] | Float[Tensor, "*batch n m"]


def check_padding_mask(mask: Tensor | None, batch: int, num_tokens: int) -> None:
    """Raise unless `mask` is None or a boolean tensor of shape (b, n), True for padding."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ConfigError(
            f"key_padding_mask has dtype {mask.dtype}; it must be bool with True for padding "
            f"(for a mask of ones and zeros: mask == 0)."
        )
    if mask.shape != (batch, num_tokens):
        raise ConfigError(
            f"key_padding_mask has shape {tuple(mask.shape)}; it must be (batch, tokens) = "
            f"({batch}, {num_tokens})."
        )


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, *, dropout_p: float = 0.0
) -> None:
    """Raise unless q, k, v are (b, h, n, d) of one shape, with a padding mask that fits."""
    if q.ndim != 4 or q.shape != k.shape or q.shape != v.shape:
        raise ConfigError(
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; they must be "
            f"one shape (batch, heads, tokens, head width)."
        )
    if not 0 <= dropout_p < 1:
        raise ConfigError(f"dropout_p ({dropout_p}) must be at least 0 and below 1.")
    check_padding_mask(key_padding_mask, q.shape[0], q.shape[2])


def check_tokens(q: Tensor, k: Tensor, x: Tensor, key_padding_mask: Tensor | None) -> None:
    """Raise unless q and k are (b, h, n, d) of one shape and x is (b, n, e): a batch of one would be broadcast."""
    if q.ndim != 4 or q.shape != k.shape:
        raise ConfigError(
            f"q and k have shapes {tuple(q.shape)} and {tuple(k.shape)}; they must be one shape "
            f"(batch, heads, tokens, head width)."
        )
    if x.ndim != 3 or x.shape[:2] != (q.shape[0], q.shape[2]):
        raise ConfigError(
            f"x has shape {tuple(x.shape)}; it must be the tokens that q, k, v were projected from, "
            f"(batch, tokens, width) = ({q.shape[0]}, {q.shape[2]}, ...)."
        )
    check_padding_mask(key_padding_mask, q.shape[0], q.shape[2])


def without_padding(x: Tensor, key_padding_mask: Bool[Tensor, "b n"] | None) -> Tensor:
    """Return `x`, (b, n, e) or (b, h, n, d), with zeros in the padded tokens, whatever stood there."""
    if key_padding_mask is None:
        return x
    padded = key_padding_mask.unsqueeze(-1)
    return x.masked_fill(padded if x.ndim == 3 else padded.unsqueeze(1), 0)


def all_without_padding(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Bool[Tensor, "b n"] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v with zeros in the padded tokens; keys that are the queries stay so."""
    kept_q = without_padding(q, key_padding_mask)
    kept_k = kept_q if k is q else without_padding(k, key_padding_mask)
    return kept_q, kept_k, without_padding(v, key_padding_mask)


def merge_masks(
    scores_shape: tuple[int, int],
    *,
    attn_mask: AttentionMask | None,
    is_causal: bool,
    key_padding_mask: Bool[Tensor, "b n"] | None,
    device: torch.device,
) -> Tensor | None:
    """Return the one mask that fused attention takes (boolean, or additive where `attn_mask` is), or None."""
    merged = attn_mask
    if is_causal:
        causal = torch.ones(scores_shape, dtype=torch.bool, device=device).tril()
        merged = _both(merged, causal)
    if key_padding_mask is not None:
        merged = _both(merged, ~key_padding_mask[:, None, None, :])
    return merged


def _both(mask: Tensor | None, allowed: Bool[Tensor, "*batch n m"]) -> Tensor:
    """Return `mask` narrowed to the pairs that are `allowed`."""
    if mask is None:
        return allowed
    if mask.dtype == torch.bool:
        return mask & allowed
    return mask.masked_fill(~allowed, float("-inf"))


def masked_softmax(
    scores: Float[Tensor, "b h n m"], mask: Tensor | None
) -> Float[Tensor, "b h n m"]:
    """Return the softmax of `scores` under `mask`; a row in which nothing is allowed is zero, as in torch."""
    if mask is None:
        return scores.softmax(-1)
    smallest = torch.finfo(scores.dtype).min
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, smallest)
    else:
        scores = (scores + mask).clamp_min(smallest)
    return scores.softmax(-1) * rows_with_a_key(mask)


def narrowed(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask as `dtype`; only minus infinity is minus infinity, not the smallest number of a wider type."""
    if mask.dtype == dtype:
        return mask
    # In 16 bits the smallest number of the other type may be rounded beyond it.
    wide = mask.to(torch.promote_types(mask.dtype, torch.float32))
    smallest = max(torch.finfo(dtype).min, torch.finfo(wide.dtype).min)
    return wide.clamp_min(smallest).to(dtype).masked_fill(mask == -math.inf, -math.inf)


def rows_with_a_key(mask: Tensor) -> Bool[Tensor, "*batch n 1"]:
    """Return which queries may attend to anything under a boolean or additive `mask`."""
    allowed = mask if mask.dtype == torch.bool else mask > -math.inf
    return allowed.any(-1, keepdim=True)
