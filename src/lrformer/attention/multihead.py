"""The projections around any similarity: one `qkv` Linear in front, one `proj` Linear behind."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrformer.attention.backends import resolve_backend
from lrformer.attention.masks import check_padding_mask, without_padding
from lrformer.core import ConfigError


class SharedKeywords(TypedDict, total=False):
    """What every attention module takes besides its own arguments; the first five are timm's."""

    proj_bias: bool
    qk_norm: bool
    scale_norm: bool
    norm_layer: Any
    depth: int
    backend: str
    device: torch.device | str | None
    dtype: torch.dtype | None


class Masks(NamedTuple):
    """The three masks of a call: `True` in `padding` is padding, as in `nn.MultiheadAttention`."""

    attn_mask: Tensor | None
    is_causal: bool
    padding: Bool[Tensor, "b n"] | None


class MultiheadSelfAttention(nn.Module, ABC):
    """Self-attention whose similarity a subclass defines.

    Parameters are laid out as in timm: `qkv` is one Linear with the rows of q (which are those of k too
    when the two are tied), then k, then v; `proj` is the output Linear.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        tie_qk: bool,
        qkv_bias: bool,
        attn_drop: float,
        proj_drop: float,
        proj_bias: bool = True,
        qk_norm: bool = False,
        scale_norm: bool = False,
        norm_layer: Any = None,
        depth: int = 0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        del (
            norm_layer,
            depth,
        )  # timm hands them to every attention; only qk_norm and scale_norm use them
        if num_heads < 1 or dim % num_heads != 0:
            raise ConfigError(f"num_heads ({num_heads}) must divide dim ({dim}).")
        for name, rate in (("attn_drop", attn_drop), ("proj_drop", proj_drop)):
            if not 0 <= rate < 1:
                raise ConfigError(f"{name} ({rate}) must be at least 0 and below 1.")
        for name, is_set in (("qk_norm", qk_norm), ("scale_norm", scale_norm)):
            if is_set:
                raise ConfigError(
                    f"{name} (True) is not supported by {type(self).__name__}: it would change the "
                    f"similarity that the module defines; leave it False."
                )
        resolve_backend(backend)
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.tie_qk = tie_qk
        self.backend = backend
        self.qkv = nn.Linear(dim, (2 if tie_qk else 3) * dim, qkv_bias, device=device, dtype=dtype)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self,
        x: Float[Tensor, "b n e"],
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        key_padding_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n e"]:
        """Return the tokens after attention; padded positions of the output carry no meaning."""
        masks = self.check_masks(x, attn_mask, is_causal, key_padding_mask)
        x = without_padding(x, masks.padding)
        q, k, v = self.project(x, masks.padding)
        dropout_p = self.attn_drop.p if self.training else 0.0
        out = self.attend(q, k, v, x, masks=masks, dropout_p=dropout_p)
        return self.proj_drop(self.proj(out.transpose(1, 2).reshape(x.shape)))

    def attention_map(
        self,
        x: Float[Tensor, "b n e"],
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        key_padding_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n n"]:
        """Return the weights that `forward` averages with, before dropout; each row sums to one."""
        masks = self.check_masks(x, attn_mask, is_causal, key_padding_mask)
        x = without_padding(x, masks.padding)
        q, k, _ = self.project(x, masks.padding)
        return self.weights(q, k, x, masks=masks)

    def project(
        self, x: Float[Tensor, "b n e"], key_padding_mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n d"], Float[Tensor, "b h n d"]]:
        """Return q, k and v per head; q and k are one tensor when tied, padded tokens are zero."""
        batch, num_tokens, _ = x.shape
        num_parts = 2 if self.tie_qk else 3
        parts = self.qkv(x).view(batch, num_tokens, num_parts, self.num_heads, self.head_dim)
        q, *k, v = (
            without_padding(part, key_padding_mask) for part in parts.permute(2, 0, 3, 1, 4)
        )
        return q, k[0] if k else q, v

    def check_masks(
        self,
        x: Float[Tensor, "b n e"],
        attn_mask: Tensor | None,
        is_causal: bool,
        key_padding_mask: Tensor | None,
    ) -> Masks:
        """Return the masks that `attend` gets, or raise for one that this similarity cannot honor."""
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise ConfigError(
                f"x has shape {tuple(x.shape)}; it must be (batch, tokens, dim) with dim {self.dim}."
            )
        check_padding_mask(key_padding_mask, x.shape[0], x.shape[1])
        return Masks(attn_mask, is_causal, key_padding_mask)

    @abstractmethod
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
        """Return the values averaged by the weights of this similarity."""

    @abstractmethod
    def weights(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        x: Float[Tensor, "b n e"],
        *,
        masks: Masks,
    ) -> Float[Tensor, "b h n n"]:
        """Return the attention weights of this similarity."""

    def extra_repr(self) -> str:
        """Return the part of `repr` that names the heads."""
        return f"dim={self.dim}, num_heads={self.num_heads}, tie_qk={self.tie_qk}"


@contextmanager
def use_backend(model: nn.Module, backend: str) -> Iterator[None]:
    """Compute every attention of `model` with `backend` inside the `with` block."""
    resolve_backend(backend)
    layers = [layer for layer in model.modules() if isinstance(layer, MultiheadSelfAttention)]
    before = [layer.backend for layer in layers]
    try:
        for layer in layers:
            layer.backend = backend
        yield
    finally:
        for layer, name in zip(layers, before, strict=True):
            layer.backend = name
