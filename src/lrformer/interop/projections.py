"""A pretrained attention layer in one neutral form, whichever package it comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrformer.attention import MultiheadSelfAttention
from lrformer.core import UnsupportedModelError

SUPPORTED = (
    "Supported: timm's VisionTransformer family (ViT, DeiT, DeiT-III, register tokens, class token or "
    "pooling) and Eva without rotary embeddings; transformers' ViT, DeiT and BERT encoders"
)


def refuse(model: nn.Module, reason: str) -> UnsupportedModelError:
    """Return the error that names `model`, says why it cannot be converted, and what can be."""
    return UnsupportedModelError(
        f"{type(model).__name__} cannot be converted: {reason} {SUPPORTED}."
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Projections:
    """What a dot-product attention computes with: weights are (out, in), a missing bias is None.

    `proj` is the output Linear, or None where the model keeps it outside of the attention module;
    `norm` is the layer that made the attention's input, or None where that is not a norm.
    """

    num_heads: int
    w_q: Float[Tensor, "e e"]
    w_k: Float[Tensor, "e e"]
    w_v: Float[Tensor, "e e"]
    b_q: Float[Tensor, " e"] | None
    b_k: Float[Tensor, " e"] | None
    b_v: Float[Tensor, " e"] | None
    proj: nn.Linear | None
    norm: nn.Module | None
    attn_drop: float = 0.0
    proj_drop: float = 0.0

    @property
    def dim(self) -> int:
        """Width of the tokens."""
        return self.w_q.shape[1]

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads

    @property
    def has_bias(self) -> bool:
        """Whether any of the three projections has a bias."""
        return any(bias is not None for bias in (self.b_q, self.b_k, self.b_v))


class AttentionCall(Protocol):
    """Reads the tokens and the padding mask out of the arguments that a model gives its attention."""

    def __call__(
        self, *args: Any, **kwargs: Any
    ) -> tuple[Float[Tensor, "b n e"], Bool[Tensor, "b n"] | None]:
        """Return the tokens that enter the projections, and True where one is padding."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """A place in a model where an attention stands, and how to put another one there."""

    name: str
    block: str
    projections: Projections
    wrap: Callable[[MultiheadSelfAttention], nn.Module]
    read_call: AttentionCall


@dataclass(frozen=True, kw_only=True, eq=False)
class Sites:
    """Every attention of a model, and how many tokens they see when nothing else is known."""

    sites: tuple[Site, ...]
    num_tokens: int
