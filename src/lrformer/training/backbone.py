"""From names to modules: the backbone that a config asks for, its record in the run, and the method around it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.data import Split
from lrformer.interop import Conversion, conversion_of, convert
from lrformer.interop.convert import reapply
from lrformer.interop.kinds import KINDS
from lrformer.methods import Method, create_method
from lrformer.models import PRESETS, override
from lrformer.training.config import TrainConfig

# Chosen by `model="auto"`, by the shape of one sample.
MODEL_FOR_POINTS = "lrformer_two_moons"
MODEL_FOR_TINY_IMAGES = "lrformer_digits"
MODEL_FOR_IMAGES = "lrformer_compact_32"
# Fewer images than these need neither the width nor the 256 tokens of the compact preset, nor its time on a CPU.
FEW_IMAGES = 4096
SETTINGS_FOR_FEW_IMAGES = {"num_convs": 2, "embed_dim": 128, "depth": 4}
# Patches of 2 overfit so few images as there are digits.
SETTINGS_FOR_TINY_IMAGES = {"patch_size": 4}
# The model of the run to start from, where that came from another package.
MODEL_OF_START = "start"
CONVERSION_SETTINGS = ("attention", "alpha", "tie_qk", "normalizer", "length_free", "key_scale")


@dataclass(frozen=True, kw_only=True)
class BackboneRecord:
    """A backbone as plain values, from which it is built again with random weights.

    Attributes:
        family: "preset", "timm" or "transformers", as in a saved model.
        model: what the family's builder needs.
        conversion: what replaced the attention of a foreign model; None if nothing did.
    """

    family: str
    model: dict[str, Any]
    conversion: Conversion | None = None

    def build(self) -> nn.Module:
        """Return the backbone with random weights; nothing is downloaded."""
        backbone = KINDS[self.family].build(self.model)
        return backbone if self.conversion is None else reapply(backbone, self.conversion)


def describe_backbone(backbone: nn.Module, config: TrainConfig) -> BackboneRecord:
    """Return the record of the `backbone` that `config` made, before a method changes it."""
    family = next((name for name in KINDS if KINDS[name].recognizes(backbone)), None)
    if family is None:
        raise ConfigError(
            f"{type(backbone).__name__} cannot be kept in a run: it is none of {', '.join(KINDS)}."
        )
    return BackboneRecord(
        family=family,
        # Our own models know their settings; not all of timm's can be read off the module.
        model=KINDS[family].describe(backbone, _timm_arguments(config) if family == "timm" else {}),
        conversion=conversion_of(backbone),
    )


def choose_model(split: Split) -> tuple[str, dict[str, Any]]:
    """Return the preset that suits the samples of `split`, and what to change in it."""
    if not split.is_image:
        return MODEL_FOR_POINTS, {}
    if split.x.shape[1:] == (8, 8, 1):
        return MODEL_FOR_TINY_IMAGES, SETTINGS_FOR_TINY_IMAGES
    return MODEL_FOR_IMAGES, SETTINGS_FOR_FEW_IMAGES if len(split) < FEW_IMAGES else {}


def resolve_model(config: TrainConfig, split: Split) -> TrainConfig:
    """Return `config` with the model that "auto" stands for; overrides of the user's win.

    With a saved model to start from it is the plain preset, since the weights must fit.
    """
    if config.model != "auto" or is_timm_name(config.start):
        return config
    model, suggested = choose_model(split)
    overrides = {**(suggested if config.start is None else {}), **config.model_overrides}
    return replace(config, model=model, model_overrides=overrides)


def file_image_size(config: TrainConfig) -> int | None:
    """Return the side to which image files are scaled as they are read, the model's; None for points.

    It is known before the data are: `predict` scales the files it is given to the size of the finished run, and
    must see what training saw.
    """
    given = config.model_overrides.get("img_size", config.image_size)
    if is_timm_name(config.start):
        return given or _timm_image_size(config.start)
    if config.model == MODEL_OF_START:
        return given
    name = MODEL_FOR_IMAGES if config.model == "auto" else config.model
    settings: Any = override(PRESETS[name], dict(config.model_overrides))
    size = getattr(getattr(settings, "tokens", settings), "img_size", None)
    return None if size is None else given or size


def create_backbone(config: TrainConfig, split: Split) -> nn.Module:
    """Return the backbone that `config` asks for, fit for the samples of `split`, without classifier.

    Channels, coordinates and image size follow the data unless an override states them.
    """
    if is_timm_name(config.start):
        return _convert_timm(config, split)
    config = resolve_model(config, split)
    settings: Any = PRESETS[config.model]
    changes = dict(config.model_overrides)
    tokens = getattr(settings, "tokens", settings)
    width = split.x.shape[-1]
    if split.is_image:
        changes = {"in_chans": width, **changes}
        if config.image_size is not None:
            changes = {"img_size": config.image_size, **changes}
    elif not hasattr(tokens, "num_inputs"):
        raise ConfigError(
            f"{split.name} holds points, but model '{config.model}' reads images; take "
            f"'{MODEL_FOR_POINTS}'."
        )
    else:
        changes = {"num_inputs": width, **changes}
    if split.is_image and hasattr(tokens, "num_inputs"):
        raise ConfigError(f"{split.name} holds images, but model '{config.model}' reads points.")
    return override(settings, {**changes, "num_classes": 0}).build()


def build_method(record: BackboneRecord, config: TrainConfig, num_classes: int) -> Method:
    """Return the method of a run with random weights, without touching the global generators."""
    with torch.random.fork_rng(devices=[]):
        return create_method(config.method, record.build, num_classes, **config.method_overrides)


def is_timm_name(start: str | None) -> TypeGuard[str]:
    """Return whether `start` is to be looked up in timm: it is neither a folder nor the way to one."""
    return bool(start) and Path(start).name == start and not Path(start).is_dir()


def backbone_img_size(backbone: nn.Module) -> int | None:
    """Return the side of the images that `backbone` takes, or None if it reads points."""
    for part in backbone.modules():
        size = getattr(part, "img_size", None)
        if size is not None:
            return size if isinstance(size, int) else int(size[0])
    config: Any = getattr(backbone, "config", None)
    size = getattr(config, "img_size", None)
    if size is None and (cfg := getattr(backbone, "pretrained_cfg", None)):
        size = cfg["input_size"][-1]
    return size


def _timm_image_size(name: str) -> int | None:
    """Return the side of the images that a model of timm takes by itself, or None for an unknown name."""
    import timm

    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    return None if cfg is None else cfg.input_size[-1]


def check_timm_name(name: str) -> None:
    """Raise where timm has no model of this name."""
    import timm

    if not timm.is_model(name):
        known = timm.list_models()
        raise ConfigError(
            f"'{name}' is neither a folder nor a model of timm {timm.__version__}."
            f"{did_you_mean(name.partition('.')[0], known)}"
        )


def _convert_timm(config: TrainConfig, split: Split) -> nn.Module:
    import timm

    name = config.start
    assert name is not None
    check_timm_name(name)
    given = config.model_overrides
    settings = {key: given[key] for key in CONVERSION_SETTINGS if key in given}
    arguments = {"in_chans": split.x.shape[-1], **_timm_arguments(config)}
    try:
        backbone = timm.create_model(name, pretrained=config.pretrained, num_classes=0, **arguments)
    except (RuntimeError, OSError, TypeError) as error:
        raise ConfigError(
            f"timm could not make '{name}' ({error}); without a network, put its weights into the "
            "cache of huggingface_hub (HF_HUB_OFFLINE=1 then asks nobody), or take random ones: pretrained=False "
            "(--no-pretrained)."
        ) from error
    return convert(backbone, inplace=True, **settings)


def _timm_arguments(config: TrainConfig) -> dict[str, Any]:
    """Return what `timm.create_model` is given beside the name: everything that is not the conversion's."""
    given = config.model_overrides
    arguments = {key: value for key, value in given.items() if key not in CONVERSION_SETTINGS}
    return arguments if config.image_size is None else {"img_size": config.image_size, **arguments}
