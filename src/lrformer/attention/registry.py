"""Attentions by name. Each entry makes a config; a config builds its module."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

from lrformer.attention.multihead import MultiheadSelfAttention
from lrformer.core import ConfigError, Registry
from lrformer.core.record import restore_as


@runtime_checkable
class AttentionConfig(Protocol):
    """The settings of one attention, a dataclass, without the sizes that the model gives."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

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
restore_as(AttentionConfig, lambda: dict.fromkeys(type(ATTENTIONS[name]()) for name in ATTENTIONS))


def check_attention(config: object) -> None:
    """Raise for what is not the settings of an attention, such as the class of a module."""
    if isinstance(config, type) or not isinstance(config, AttentionConfig):
        what = f"the class {config.__name__}" if isinstance(config, type) else repr(config)
        raise ConfigError(
            f"attention ({what}) must be a name ({', '.join(ATTENTIONS)}) or settings such as LRSAConfig(alpha=100.0); how "
            "to register your own is in docs/extending.md."
        )


def list_attentions() -> list[str]:
    """Return the names that `create_model(..., attention=name)` and `convert` accept."""
    return ATTENTIONS.names()
