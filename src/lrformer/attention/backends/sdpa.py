"""One call of torch's fused attention: memory linear in the number of tokens, on every device."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lrformer.attention.masks import merge_masks, narrowed, rows_with_a_key, without_padding

# Score of a padded key: exp(-30000) is zero in every dtype and, unlike an infinity, it leaves finite
# gradients. The largest score of a row is never below zero (see `squared_distance`), so a padded key
# cannot win, unless another mask takes the larger ones away.
_PADDED_SCORE = -30_000.0


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
    mask = attn_mask
    if key_padding_mask is not None or (is_causal and attn_mask is not None):
        mask = merge_masks(
            (q.shape[-2], k.shape[-2]),
            attn_mask=attn_mask,
            is_causal=is_causal,
            key_padding_mask=key_padding_mask,
            device=q.device,
        )
        is_causal = False
    if mask is not None and mask.dtype != torch.bool:
        mask = narrowed(mask, q.dtype)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale
    )


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
    r"""Return softmax(-coefficient ||q_i - k_j||^2) v as one fused dot-product attention.

    With :math:`\bar q, \bar k` the mean query and key, up to a constant in j,
    :math:`-c\|q_i-k_j\|^2 \equiv 2c (q_i-\bar q)\cdot(k_j-\bar k) - c\|k_j-\bar q\|^2`:
    a dot product and a bias per key, which rides in extra columns of the keys against ones in the
    queries. The bias is centered too, so the scores of a row have mean zero and their largest is never
    negative. Centering and bias are computed in float32; in a 16-bit kernel the bias takes two columns,
    its rounded value and the rest, of which only the first carries the gradient.

    Two more things keep 16-bit gradients right, where the score gradients of a row do not quite sum to
    zero. For tied queries and keys, a column that is zero going forward carries the gradient of the term
    that is constant in j: the rounding then meets the distance itself, which is small where the weight is
    large. And what all values of a column share is taken off before the kernel and added after it, unless
    dropout takes weights away. A bias can exceed the largest float16: such calls are made in float32.
    """
    width = v.shape[-1]
    dtype = kernel_dtype(v)
    if dtype == torch.float16:
        with torch.autocast(v.device.type, enabled=False):
            wide_q = q.float()
            return squared_distance(
                wide_q,
                wide_q if k is q else k.float(),
                v.float(),
                coefficient,
                attn_mask=attn_mask,
                is_causal=is_causal,
                key_padding_mask=key_padding_mask,
                dropout_p=dropout_p,
            ).to(dtype)
    wide = torch.promote_types(q.dtype, torch.float32)
    q_wide = q.to(wide)
    k_wide = q_wide if k is q else k.to(wide)
    mean_q = _valid_mean(q_wide, key_padding_mask).detach()
    mean_k = mean_q if k is q else _valid_mean(k_wide, key_padding_mask).detach()

    # sqrt(2c) on both sides, not 2c on one: after it both are scale free, which float16 needs.
    c = coefficient.unsqueeze(-1)
    root = (2 * c.unsqueeze(-1)).sqrt()
    shifted_q = q_wide - mean_q
    centered_q = (root * shifted_q).to(dtype)
    centered_k = centered_q if k is q else (root * (k_wide - mean_k)).to(dtype)

    distance_k = (shifted_q if k is q else k_wide - mean_q).square().sum(-1)
    bias = -c * distance_k
    bias = bias - _valid_mean(bias.unsqueeze(-1), key_padding_mask).squeeze(-1).detach()
    is_masked = attn_mask is not None or is_causal
    if key_padding_mask is not None:
        bias = bias.masked_fill(key_padding_mask.unsqueeze(1), _PADDED_SCORE)
        # Its score is then that of the bias alone, wherever the mean key lies.
        centered_k = without_padding(centered_k, key_padding_mask)
    leading = bias.to(dtype)
    ones = torch.ones_like(leading)
    q_columns, k_columns = [ones], [leading]
    shared_v = None
    if dtype != wide:
        rest = (bias - leading.to(wide)).detach().to(dtype)
        q_columns, k_columns = [ones, ones], [leading, rest]
        if k is q:
            constant = -c * distance_k
            q_columns.append((constant - constant.detach()).to(dtype))
            k_columns.append(ones)
        if dropout_p == 0 and v.shape[-2] > 0:
            shared_v = _shared_part(v, key_padding_mask).detach()

    mask = merge_masks(
        (q.shape[-2], k.shape[-2]),
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask if is_masked else None,
        device=q.device,
    )
    if mask is not None and mask.dtype != torch.bool:
        mask = narrowed(mask, dtype)
    out = F.scaled_dot_product_attention(
        _widened(centered_q, q_columns),
        _widened(centered_k, k_columns),
        _widened((v if shared_v is None else v - shared_v).to(dtype), [], width + len(k_columns)),
        attn_mask=mask,
        dropout_p=dropout_p,
        scale=1.0,
    )
    out = out[..., :width]
    if shared_v is None:
        return out
    shared_v = shared_v.to(out.dtype)
    return out + (shared_v if mask is None else shared_v * rows_with_a_key(mask))


def kernel_dtype(v: Tensor) -> torch.dtype:
    """Return the dtype in which the fused kernel will run: autocast narrows what it is given, but for float64."""
    if v.dtype != torch.float64 and torch.is_autocast_enabled(v.device.type):
        return torch.get_autocast_dtype(v.device.type)
    return v.dtype


def _widened(
    x: Float[Tensor, "b h n d"], columns: list[Float[Tensor, "b h n"]], width: int = 0
) -> Float[Tensor, "b h n w"]:
    """Return `x` with more columns, then zeros up to a multiple of eight: fused kernels want that,
    and one width for q, k and v; the CPU's falls back to the whole matrix without a word otherwise.
    """
    used = x.shape[-1] + len(columns)
    missing = -(-max(width, used) // 8) * 8 - used
    zeros = x.new_zeros(1).expand(*x.shape[:-1], missing)
    return torch.cat([x, *(column.unsqueeze(-1) for column in columns), zeros], -1)


def _valid_mean(
    x: Float[Tensor, "b h n d"], key_padding_mask: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b h 1 d"]:
    """Return the mean over the tokens that are not padding."""
    if key_padding_mask is None:
        return x.mean(-2, keepdim=True)
    valid = ~key_padding_mask[:, None, :, None]
    return (x * valid).sum(-2, keepdim=True) / valid.sum(-2, keepdim=True).clamp_min(1)


def _shared_part(
    v: Float[Tensor, "b h n d"], key_padding_mask: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b h 1 d"]:
    """Return the largest shift of each column that takes no entry farther from zero."""
    smallest = largest = v
    if key_padding_mask is not None:
        padded = key_padding_mask[:, None, :, None]
        smallest = v.masked_fill(padded, float("inf"))
        largest = v.masked_fill(padded, float("-inf"))
    smallest = smallest.amin(-2, keepdim=True).clamp_min(0)
    largest = largest.amax(-2, keepdim=True).clamp_max(0)
    if key_padding_mask is None:
        return smallest + largest
    # Of no entry at all both are infinite.
    is_empty = key_padding_mask.all(-1)[:, None, None, None]
    return (smallest + largest).masked_fill(is_empty, 0)
