"""Scaled cosine similarity attention (LipsFormer): bounded because everything is normalized."""

from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lrformer.attention.backends import reference, resolve_backend
from lrformer.attention.masks import all_without_padding, check_inputs
from lrformer.attention.multihead import Masks, MultiheadSelfAttention, SharedKeywords
from lrformer.attention.registry import ATTENTIONS
from lrformer.core import ConfigError


def scsa_attention(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    *,
    tau: float = 12.0,
    nu: float = 1.0,
    eps: float = 1e-8,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    key_padding_mask: Bool[Tensor, "b n"] | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "b h n d"]:
    """Return nu softmax(tau q k^T) v with every row of q, k and v divided by sqrt(||row||^2 + eps)."""
    check_inputs(q, k, v, key_padding_mask, dropout_p=dropout_p)
    _check_settings(tau, nu, eps)
    q, k, v = all_without_padding(q, k, v, key_padding_mask)
    return nu * resolve_backend(backend).dot_product(
        _unit_rows(q, eps),
        _unit_rows(k, eps),
        _unit_rows(v, eps),
        scale=tau,
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
        dropout_p=dropout_p,
    )


def _check_settings(tau: float, nu: float, eps: float) -> None:
    """Raise unless every setting is positive."""
    for name, value in (("tau", tau), ("nu", nu), ("eps", eps)):
        if not value > 0:
            raise ConfigError(f"{name} ({value}) must be positive.")


def _unit_rows(x: Float[Tensor, "b h n d"], eps: float) -> Float[Tensor, "b h n d"]:
    """Return x / sqrt(||x||^2 + eps) row by row, computed in float32 or better."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


class SCSA(MultiheadSelfAttention):
    """Multi-head scaled cosine similarity attention; the defaults are those of the paper's table 3."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        tau: float = 12.0,
        nu: float = 1.0,
        eps: float = 1e-8,
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
        _check_settings(tau, nu, eps)
        self.tau = tau
        self.nu = nu
        self.eps = eps

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
        """Return the normalized values averaged by the softmax of the scaled cosines."""
        del x
        return scsa_attention(
            q,
            k,
            v,
            tau=self.tau,
            nu=self.nu,
            eps=self.eps,
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
        """Return the softmax of the scaled cosines."""
        del x
        return reference.dot_product_weights(
            _unit_rows(q, self.eps),
            _unit_rows(k, self.eps),
            scale=self.tau,
            attn_mask=masks.attn_mask,
            is_causal=masks.is_causal,
            key_padding_mask=masks.padding,
        )

    def extra_repr(self) -> str:
        """Return the part of `repr` that names the settings."""
        return f"{super().extra_repr()}, tau={self.tau}, nu={self.nu}, eps={self.eps}"


@dataclass(frozen=True, kw_only=True)
class SCSAConfig:
    """Settings of `SCSA`."""

    tau: float = 12.0
    nu: float = 1.0
    eps: float = 1e-8
    qkv_bias: bool = False

    def build(
        self, dim: int, num_heads: int, *, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> SCSA:
        """Return the module for tokens of width `dim`."""
        return SCSA(
            dim,
            num_heads,
            tau=self.tau,
            nu=self.nu,
            eps=self.eps,
            qkv_bias=self.qkv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )


ATTENTIONS.register("scsa")(SCSAConfig)
