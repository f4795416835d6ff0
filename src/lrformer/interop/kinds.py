"""How a model of each kind is described in a few plain values, and built again from them."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from torch import nn

from lrformer import models
from lrformer.core import ConfigError, Registry, from_record, require_extra, to_record
from lrformer.models import override


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A family of models that can be saved.

    `recognizes` says whether a model belongs to it; `describe` returns JSON values, from which `build`
    makes the model again with random weights. `describe` also takes arguments that the user adds.
    """

    recognizes: Callable[[nn.Module], bool]
    describe: Callable[[Any, dict[str, Any]], dict[str, Any]]
    build: Callable[[dict[str, Any]], nn.Module]


KINDS: Registry[Kind] = Registry("kind of model")


def _is_from(model: nn.Module, package: str) -> bool:
    """Return whether a class of `model` comes from `package`, without importing it."""
    return any(cls.__module__.partition(".")[0] == package for cls in type(model).__mro__)


def _is_ours(model: nn.Module) -> bool:
    """Return whether `model` was built by one of this package's model configs."""
    config = getattr(model, "config", None)
    return config is not None and getattr(models, type(config).__name__, None) is type(config)


def _describe_ours(model: Any, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the config of one of our models as it is now, its classifier and image size included."""
    changes: dict[str, Any] = {"num_classes": model.num_classes}
    img_size = getattr(getattr(model, "tokenizer", None), "img_size", None)
    if img_size is not None:
        changes["img_size"] = img_size
    return {"config": to_record(override(model.config, changes | model_kwargs))}


def _build_ours(record: dict[str, Any]) -> nn.Module:
    """Return the model of a config of `lrformer.models`."""
    name = record["config"]["kind"]
    config_class = getattr(models, name, None)
    if not (dataclasses.is_dataclass(config_class) and hasattr(config_class, "build")):
        raise ConfigError(f"'{name}' is not a model config of this version of lrformer.")
    config: Any = from_record(config_class, record["config"])  # pyright: ignore[reportArgumentType]
    return config.build()


def _describe_timm(model: Any, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the architecture of a timm model and the arguments that are usually changed."""
    config = getattr(model, "pretrained_cfg", None) or {}
    architecture = config.get("architecture") if hasattr(config, "get") else None
    if architecture and config.get("tag"):
        architecture = f"{architecture}.{config['tag']}"
    kwargs = {
        name: getattr(model, name)
        for name in ("num_classes", "in_chans", "global_pool")
        if isinstance(getattr(model, name, None), int | str)
    }
    if hasattr(model, "blocks") and hasattr(model, "patch_embed"):
        kwargs |= _timm_vit_arguments(model)
        if architecture is None:
            kwargs |= _timm_vit_sizes(model)
    return {
        "architecture": architecture,
        "class": type(model).__name__,
        "kwargs": to_record(kwargs | model_kwargs),
    }


def _timm_vit_arguments(model: Any) -> dict[str, Any]:
    """Return the arguments of a timm vision transformer that a user may have set beside its architecture."""
    blocks = list(model.blocks)
    attn = getattr(blocks[0], "attn", None)
    attn = getattr(attn, "attn", attn)
    rates = {
        "drop_rate": getattr(model, "head_drop", None),
        "pos_drop_rate": getattr(model, "pos_drop", None),
        "attn_drop_rate": getattr(attn, "attn_drop", None),
        "proj_drop_rate": getattr(attn, "proj_drop", None),
    }
    drop_paths = [getattr(getattr(block, "drop_path1", None), "drop_prob", 0.0) for block in blocks]
    return {
        "in_chans": model.patch_embed.proj.in_channels,
        "patch_size": list(model.patch_embed.patch_size),
        "img_size": list(model.patch_embed.img_size),
        "depth": len(blocks),
        "drop_path_rate": max(drop_paths),
    } | {name: layer.p for name, layer in rates.items() if isinstance(layer, nn.Dropout)}


def _timm_vit_sizes(model: Any) -> dict[str, Any]:
    """Return the sizes of a timm model that was made by its class, not by `timm.create_model`."""
    block = model.blocks[0]
    attn = getattr(block.attn, "attn", block.attn)
    return {
        "embed_dim": model.embed_dim,
        "num_heads": attn.num_heads,
        "mlp_ratio": block.mlp.fc1.out_features / model.embed_dim,
    }


def _build_timm(record: dict[str, Any]) -> nn.Module:
    """Return a timm model with random weights; nothing is ever downloaded."""
    import timm
    from timm.models import deit, eva, vision_transformer

    kwargs: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in record["kwargs"].items()
    }
    architecture = record["architecture"]
    if architecture is not None:
        if not timm.is_model(architecture):
            raise ConfigError(f"timm {timm.__version__} has no architecture '{architecture}'.")
        return timm.create_model(architecture, pretrained=False, **kwargs)
    classes: dict[str, Any] = {
        cls.__name__: cls
        for cls in (
            vision_transformer.VisionTransformer,
            deit.VisionTransformerDistilled,
            eva.Eva,
        )
    }
    if record["class"] not in classes:
        raise ConfigError(
            f"a {record['class']} that timm.create_model did not make cannot be rebuilt; "
            f"known classes: {', '.join(classes)}."
        )
    return classes[record["class"]](**kwargs)


def _describe_transformers(model: Any, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a transformers model and the names of its classes."""
    return {
        "class": type(model).__name__,
        "config_class": type(model.config).__name__,
        "config": json.loads(model.config.to_json_string(use_diff=False)) | model_kwargs,
    }


def _build_transformers(record: dict[str, Any]) -> nn.Module:
    """Return a transformers model with random weights; only classes of that package are built."""
    transformers: Any = require_extra("transformers", extra="hf")
    cls = getattr(transformers, record["class"], None)
    config_class = getattr(transformers, record["config_class"], None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ConfigError(f"transformers has no model class '{record['class']}'.")
    if not (isinstance(config_class, type) and hasattr(config_class, "from_dict")):
        raise ConfigError(f"transformers has no config class '{record['config_class']}'.")
    return cls(config_class.from_dict(record["config"]))


KINDS.register("preset")(Kind(recognizes=_is_ours, describe=_describe_ours, build=_build_ours))
KINDS.register("timm")(
    Kind(
        recognizes=lambda model: _is_from(model, "timm"),
        describe=_describe_timm,
        build=_build_timm,
    )
)
KINDS.register("transformers")(
    Kind(
        recognizes=lambda model: _is_from(model, "transformers"),
        describe=_describe_transformers,
        build=_build_transformers,
    )
)
