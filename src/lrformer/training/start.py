"""Where the weights of a run start: drawn, from timm, or from the backbone of an earlier run."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from lrformer.core import ConfigError
from lrformer.data import Split
from lrformer.methods.base import BackboneMethod
from lrformer.models.spectral import fold_spectral_norm
from lrformer.training.atomic_files import read_json
from lrformer.training.backbone import (
    MODEL_OF_START,
    BackboneRecord,
    backbone_img_size,
    create_backbone,
    describe_backbone,
    is_timm_name,
)
from lrformer.training.config import TrainConfig
from lrformer.training.opening import load
from lrformer.training.run_folder import CONFIG_FILE, KIND, Run, RunConfig, read_run_config


def take_model_of_start(config: TrainConfig) -> TrainConfig:
    """Return `config` with the model of the run that it starts from, where it leaves the model open.

    Of one of our models the settings are taken, and what `config` sets wins. A model of timm is taken as it is.
    """
    if config.model != "auto" or config.start is None or is_timm_name(config.start):
        return config
    folder = Path(config.start)
    record = read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else None
    if not isinstance(record, dict) or record.get("kind") != KIND:
        return config
    there = read_run_config(folder)
    if there.backbone.family == "preset":
        settings = dict(there.train.model_overrides)
        if config.image_size is not None:
            settings.pop("img_size", None)
        return dataclasses.replace(
            config,
            model=there.train.model,
            model_overrides={**settings, **config.model_overrides},
            image_size=config.image_size or there.train.image_size,
        )
    if config.model_overrides or config.image_size not in (None, there.img_size):
        changes = {"image_size": config.image_size, **config.model_overrides}
        name, value = next(item for item in reversed(changes.items()) if item[1] is not None)
        raise ConfigError(
            f"{name} ({value!r}) cannot be set: {folder} holds a model of {there.backbone.family}, which is taken as it "
            f"is, with images of {there.img_size} pixels. Leave it out, or start from that package's model."
        )
    return dataclasses.replace(config, model=MODEL_OF_START, image_size=there.img_size)


def backbone_factory(config: TrainConfig, split: Split) -> Callable[[], nn.Module]:
    """Return what makes the backbones of a run, each with the weights that it starts from."""
    there = _run_to_start_from(config)
    if there is not None and there.channels != split.x.shape[-1]:
        raise ConfigError(
            f"{split.name} has {split.x.shape[-1]} channels, but the model of {config.start} takes {there.channels}; "
            f"of image files channels={there.channels} (--channels) makes as many."
        )

    def make() -> nn.Module:
        backbone = create_backbone(config, split) if there is None else there.backbone.build()
        if config.start is not None and not is_timm_name(config.start):
            copy_backbone(Path(config.start), backbone, with_alpha=there is not None)
        return backbone

    return make


def record_backbone(backbone: nn.Module, config: TrainConfig) -> BackboneRecord:
    """Return the record of a backbone that `backbone_factory` made."""
    there = _run_to_start_from(config)
    return describe_backbone(backbone, config) if there is None else there.backbone


def _run_to_start_from(config: TrainConfig) -> RunConfig | None:
    """Return the run whose model is taken as it is, or None if `config` names one of ours or timm's."""
    if config.model != MODEL_OF_START:
        return None
    if config.start is None:
        raise ConfigError(f"model ('{MODEL_OF_START}') needs a run to start from: start (--from).")
    return read_run_config(Path(config.start))


def copy_backbone(folder: Path, target: nn.Module, *, with_alpha: bool = False) -> None:
    """Put the weights of the run or model in `folder` into `target`, interpolated to its image size."""
    loaded = load(folder)
    source: Any = loaded
    if isinstance(loaded, Run):
        if not isinstance(loaded.method, BackboneMethod):
            raise ConfigError(
                f"{folder} holds a {type(loaded.method).__name__}, which has no single backbone to "
                "start from; take the run of another method."
            )
        source = loaded.method.backbone
        fold_spectral_norm(source)
    size = backbone_img_size(target)
    if size is not None and size != backbone_img_size(source) and hasattr(source, "set_input_size"):
        source.set_input_size(size)
    wanted = target.state_dict()
    found = {name: value for name, value in source.state_dict().items() if name in wanted}
    for name, value in wanted.items():
        if name not in found or found[name].shape != value.shape:
            there = f"has shape {tuple(found[name].shape)}" if name in found else "is missing"
            raise ConfigError(
                f"{folder} cannot start this model: '{name}' of shape {tuple(value.shape)} {there} "
                "there; take the same model and the same overrides."
            )
    # Alpha belongs to the new run's settings, not to the old weights, unless the model has no settings but the old.
    kept = {name: wanted[name] for name in wanted if name.rpartition(".")[2] == "alpha"}
    target.load_state_dict({**found, **({} if with_alpha else kept)})
