"""L2 attention (Kim et al. 2021): squared distances over sqrt(d), with tied queries and keys."""

from dataclasses import dataclass
from functools import partial
from typing import Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lrformer.attention.backends import reference, resolve_backend
from lrformer.attention.masks import all_without_padding, check_inputs
from lrformer.attention.multihead import Masks, MultiheadSelfAttention, SharedKeywords
from lrformer.attention.registry import ATTENTIONS


def l2_attention(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    key_padding_mask: Bool[Tensor, "b n"] | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "b h n d"]:
    """Return softmax(-||q_i - k_j||^2 / sqrt(d)) v."""
    check_inputs(q, k, v, key_padding_mask, dropout_p=dropout_p)
    q, k, v = all_without_padding(q, k, v, key_padding_mask)
    return resolve_backend(backend).squared_distance(
        q,
        k,
        v,
        _coefficient(q),
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
        dropout_p=dropout_p,
    )


def _coefficient(q: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h"]:
    """Return 1/sqrt(d) for every sample and head."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_full(q.shape[:2], q.shape[-1] ** -0.5, dtype=wide)


class L2Attention(MultiheadSelfAttention):
    """Multi-head L2 attention with tied queries and keys.

    `provable=True` is the form with a Lipschitz constant (theorem 6 of docs/lipschitz.md): the values of a
    head are X (W W^T / sqrt(d)) W_V with W the head's tied query and key map. The plain form, whose
    values are free, has none as soon as there is more than one head.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        provable: bool = False,
        qkv_bias: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        **shared: Unpack[SharedKeywords],
    ) -> None:
        super().__init__(
            dim,
            num_heads,
            tie_qk=True,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            **shared,
        )
        self.provable = provable

    def value_map(self) -> Float[Tensor, "h d d"]:
        """Return W^T W_V / sqrt(d) of every head: what takes a query (without its bias) to its value."""
        weight = self.qkv.weight.view(2, self.num_heads, self.head_dim, self.dim)
        return weight[0] @ weight[1].mT * self.head_dim**-0.5

    def project(
        self, x: Float[Tensor, "b n e"], key_padding_mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n d"], Float[Tensor, "b h n d"]]:
        """Return q twice and v; in the provable form v is made from q."""
        q, k, v = super().project(x, key_padding_mask)
        if not self.provable:
            return q, k, v
        linear_q = q
        bias = self.qkv.bias
        if bias is not None:
            bias_q, bias_v = bias.view(2, 1, self.num_heads, 1, self.head_dim)
            linear_q = q - bias_q
            return q, k, linear_q @ self.value_map() + bias_v
        return q, k, linear_q @ self.value_map()

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
        """Return the values averaged by the softmax of the scaled squared distances."""
        del x
        return l2_attention(
            q,
            k,
            v,
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
        """Return the softmax of the scaled squared distances."""
        del x
        return reference.squared_distance_weights(
            q,
            k,
            _coefficient(q),
            attn_mask=masks.attn_mask,
            is_causal=masks.is_causal,
            key_padding_mask=masks.padding,
        )

    def extra_repr(self) -> str:
        """Return the part of `repr` that names the settings."""
        return f"{super().extra_repr()}, provable={self.provable}"


@dataclass(frozen=True, kw_only=True)
class L2Config:
    """Settings of `L2Attention`."""

    provable: bool = False
    qkv_bias: bool = False

    def build(
        self, dim: int, num_heads: int, *, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> L2Attention:
        """Return the module for tokens of width `dim`."""
        return L2Attention(
            dim,
            num_heads,
            provable=self.provable,
            qkv_bias=self.qkv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )


ATTENTIONS.register("l2")(L2Config)
ATTENTIONS.register("l2_provable")(partial(L2Config, provable=True))
