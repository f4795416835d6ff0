"""Attentions by name. Each entry makes a config; a config builds its module."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from lrformer.attention.multihead import MultiheadSelfAttention
from lrformer.core import Registry


@runtime_checkable
class AttentionConfig(Protocol):
    """The settings of one attention, without the sizes that the model gives."""

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections have biases."""
        ...

    def build(
        self, dim: int, num_heads: int, *, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> MultiheadSelfAttention:
        """Return the module for tokens of width `dim`."""
        ...


ATTENTIONS: Registry[Callable[..., AttentionConfig]] = Registry("attention")


def list_attentions() -> list[str]:
    """Return the names that `create_model(..., attention=name)` and `convert` accept."""
    return ATTENTIONS.names()
