"""Scaled dot-product attention: the attention that the others replace."""

from dataclasses import dataclass
from typing import Unpack

from jaxtyping import Bool, Float
from torch import Tensor

from lrformer.attention.backends import reference, resolve_backend
from lrformer.attention.masks import all_without_padding, check_inputs
from lrformer.attention.multihead import Masks, MultiheadSelfAttention, SharedKeywords
from lrformer.attention.registry import ATTENTIONS


def dot_product_attention(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    key_padding_mask: Bool[Tensor, "b n"] | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "b h n d"]:
    """Return softmax(scale q k^T) v with `scale` 1/sqrt(d) unless given (eq. dot-product)."""
    check_inputs(q, k, v, key_padding_mask, dropout_p=dropout_p)
    q, k, v = all_without_padding(q, k, v, key_padding_mask)
    return resolve_backend(backend).dot_product(
        q,
        k,
        v,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
        dropout_p=dropout_p,
    )


class DotProductAttention(MultiheadSelfAttention):
    """Multi-head dot-product attention, equal to timm's `Attention` with the same weights.

    It has no Lipschitz constant on unbounded tokens (docs/lipschitz.md).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        **shared: Unpack[SharedKeywords],
    ) -> None:
        super().__init__(
            dim,
            num_heads,
            tie_qk=False,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            **shared,
        )
        self.scale = self.head_dim**-0.5

    def attend(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n d"],
        x: Float[Tensor, "b n e"],
        *,
        masks: Masks,
        dropout_p: float,
    ) -> Float[Tensor, "b h n d"]:
        """Return the values averaged by the softmax of the scaled dot products."""
        del x
        return dot_product_attention(
            q,
            k,
            v,
            scale=self.scale,
            attn_mask=masks.attn_mask,
            is_causal=masks.is_causal,
            key_padding_mask=masks.padding,
            dropout_p=dropout_p,
            backend=self.backend,
        )

    def weights(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        x: Float[Tensor, "b n e"],
        *,
        masks: Masks,
    ) -> Float[Tensor, "b h n n"]:
        """Return the softmax of the scaled dot products."""
        del x
        return reference.dot_product_weights(
            q,
            k,
            scale=self.scale,
            attn_mask=masks.attn_mask,
            is_causal=masks.is_causal,
            key_padding_mask=masks.padding,
        )


@dataclass(frozen=True, kw_only=True)
class DotProductConfig:
    """Settings of `DotProductAttention`."""

    qkv_bias: bool = False

    def build(
        self, dim: int, num_heads: int, *, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> DotProductAttention:
        """Return the module for tokens of width `dim`."""
        return DotProductAttention(
            dim, num_heads, qkv_bias=self.qkv_bias, attn_drop=attn_drop, proj_drop=proj_drop
        )


ATTENTIONS.register("dot_product")(DotProductConfig)
