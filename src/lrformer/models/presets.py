"""Models by name: the paper's sizes, their 32-pixel versions, and small ones for small data."""

import dataclasses
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import nn

from lrformer.attention import ATTENTIONS
from lrformer.attention.registry import check_attention
from lrformer.core import ConfigError, Registry
from lrformer.core.kinds import check_kinds
from lrformer.core.registry import did_you_mean
from lrformer.models.residual_tokenizer import ResidualTokens
from lrformer.models.tokenizer import ConvTokens, PatchTokens, VectorTokens
from lrformer.models.vit import ViTConfig
from lrformer.models.wide_resnet import WideResNetConfig


@runtime_checkable
class ModelConfig(Protocol):
    """A frozen dataclass that builds its model."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def build(self) -> nn.Module:
        """Return the model, with random weights."""
        ...


PRESETS: Registry[ModelConfig] = Registry("model")

_WIDTHS_AND_HEADS = {"small": (384, 6), "tiny": (192, 3)}
_INPUTS = {
    "patch16_224": PatchTokens(img_size=224, patch_size=16),
    "patch4_32": PatchTokens(img_size=32, patch_size=4),
}

for _size, (_width, _heads) in _WIDTHS_AND_HEADS.items():
    for _depth, _infix in ((12, ""), (6, "_depth6")):
        for _input, _tokens in _INPUTS.items():
            PRESETS.register(f"lrformer_{_size}{_infix}_{_input}")(
                ViTConfig(tokens=_tokens, embed_dim=_width, depth=_depth, num_heads=_heads)
            )
PRESETS.register("lrformer_compact_32")(
    ViTConfig(
        tokens=ConvTokens(img_size=32),
        embed_dim=256,
        depth=7,
        num_heads=4,
        mlp_ratio=2.0,
        global_pool="seq",
    )
)
PRESETS.register("lrformer_hybrid_32")(
    ViTConfig(
        tokens=ResidualTokens(img_size=32),
        embed_dim=384,
        depth=6,
        num_heads=6,
        global_pool="seq",
    )
)
PRESETS.register("lrformer_digits")(
    ViTConfig(
        tokens=PatchTokens(img_size=8, patch_size=2, in_chans=1),
        embed_dim=64,
        depth=4,
        num_heads=4,
        mlp_ratio=2.0,
        global_pool="avg",
    )
)
PRESETS.register("lrformer_two_moons")(
    ViTConfig(
        tokens=VectorTokens(num_inputs=2, num_tokens=8),
        num_classes=2,
        embed_dim=24,
        depth=9,
        num_heads=8,
        final_norm=False,
        global_pool="avg",
    )
)
PRESETS.register("wide_resnet28_10")(WideResNetConfig())


def list_models() -> list[str]:
    """Return the names that `create_model` accepts."""
    return PRESETS.names()


def create_model(name: str, num_classes: int | None = None, **overrides: Any) -> nn.Module:
    """Return the model called `name`, with random weights.

    `overrides` are fields of its config or of the configs inside it: `depth=3`, `img_size=64`,
    `attention="dot_product"`, `alpha=1000.0`.

    >>> model = create_model("lrformer_tiny_patch4_32", num_classes=100, alpha=500.0)
    """
    if num_classes is not None:
        overrides["num_classes"] = num_classes
    return override(PRESETS[name], overrides).build()


def override(config: ModelConfig, changes: dict[str, Any]) -> ModelConfig:
    """Return `config` with `changes`, each to the field of that name here or one level down."""
    changes = dict(changes)
    if isinstance(changes.get("attention"), str):
        changes["attention"] = ATTENTIONS[changes["attention"]]()
    elif "attention" in changes:
        check_attention(changes["attention"])
    own = _field_names(config)
    changed = _changed(config, {name: value for name, value in changes.items() if name in own})
    nested = {
        f.name: getattr(changed, f.name)
        for f in dataclasses.fields(config)
        if dataclasses.is_dataclass(getattr(changed, f.name))
    }
    # All changes of one part at once: settings that must fit each other cannot be changed one by one.
    of_parts: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        if name in own:
            continue
        owner = next((key for key, part in nested.items() if name in _field_names(part)), None)
        if owner is None:
            known = sorted(own.union(*map(_field_names, nested.values())))
            raise ConfigError(
                f"the model has no setting '{name}'.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}."
            )
        of_parts.setdefault(owner, {})[name] = value
    parts = {name: _changed(nested[name], settings) for name, settings in of_parts.items()}
    return dataclasses.replace(changed, **parts)


def _changed(config: Any, settings: dict[str, Any]) -> Any:
    """Return the dataclass with other settings, which must be of the kind that it declares."""
    check_kinds(type(config), settings)
    return dataclasses.replace(config, **settings)


def _field_names(config: Any) -> set[str]:
    """Return the names of a dataclass's fields."""
    return {f.name for f in dataclasses.fields(config)}
