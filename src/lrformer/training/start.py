"""Where the weights of a run start: drawn, from timm, or from the backbone of an earlier run."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lrformer.core import ConfigError
from lrformer.data import Split
from lrformer.methods.base import BackboneMethod
from lrformer.models import PRESETS
from lrformer.models.spectral import fold_spectral_norm
from lrformer.training.backbone import (
    MODEL_OF_START,
    BackboneRecord,
    backbone_img_size,
    check_timm_name,
    create_backbone,
    describe_backbone,
    is_timm_name,
)
from lrformer.training.config import TrainConfig
from lrformer.training.metrics_file import is_finished
from lrformer.training.opening import load
from lrformer.training.posterior import PosteriorClassifier
from lrformer.training.run_config import RunConfig, is_run, read_run_config
from lrformer.training.run_folder import Run
from lrformer.training.splits import load_splits
from lrformer.training.start_model import StartModel, read_start
from lrformer.training.state import state_path


def run_in_place_of_start(config: TrainConfig, folder: Path) -> RunConfig | None:
    """Return the run in `folder` where it has weights of its own and its start is gone, or None where that is needed.

    A run that goes on, is finished or gives its weights to a refitted one does not need the run it started from.
    """
    start = config.start
    if start is None or Path(start).expanduser().is_dir():
        return None
    if not (is_run(folder) and (is_finished(folder) or state_path(folder).is_file())):
        return None
    there = read_run_config(folder)
    # What a run stores of a folder is its whole path, so that the name of a timm model is never taken for one.
    is_same = there.train.start == _absolute(start)
    return there if is_same or (there.train.start == start and not is_timm_name(start)) else None


def take_model_of_start(
    config: TrainConfig, known: RunConfig | None = None, *, folder: Path | None = None
) -> TrainConfig:
    """Return `config` with the model of the folder that it starts from, where it leaves the model open.

    Of a run of one of our models the settings are taken, and what `config` sets wins. A model of timm and what
    `lrformer.save` wrote are taken as they are.

    Args:
        known: what `run_in_place_of_start` returned.
        folder: of the run. One that was begun when a saved model had to be named keeps the model that it has.
    """
    if known is not None:
        config = dataclasses.replace(config, start=known.train.start)
    elif config.start is None:
        return config
    elif is_timm_name(config.start):
        check_timm_name(config.start)
        return config
    else:
        config = dataclasses.replace(config, start=str(_folder_to_start_from(config)))
    if config.model != "auto":
        return config
    there = read_start(Path(config.start or "")) if known is None else known
    if there.train is None and folder is not None and is_run(folder):
        before = read_run_config(folder)
        if before.train.start == config.start and before.train.model in PRESETS:
            there = before
    if there.train is not None and there.train.model in PRESETS:
        settings = dict(there.train.model_overrides)
        size = config.image_size
        if size is not None:
            settings.pop("img_size", None)
        return dataclasses.replace(
            config,
            model=there.train.model,
            model_overrides={**settings, **config.model_overrides},
            image_size=there.train.image_size if size is None else size,
        )
    if config.model_overrides or config.image_size not in (None, there.img_size):
        changes = {"image_size": config.image_size, **config.model_overrides}
        name, value = next(item for item in reversed(changes.items()) if item[1] is not None)
        raise ConfigError(
            f"{name} ({value!r}) cannot be set: {config.start} holds a model that is taken as it is, {_size(there)}. "
            "Leave it out, or name the model (--model, or --from with that of timm)."
        )
    return dataclasses.replace(config, model=MODEL_OF_START, image_size=there.img_size)


def backbone_factory(
    config: TrainConfig, split: Split, known: RunConfig | None = None
) -> Callable[[], nn.Module]:
    """Return what makes the backbones of a run, each with the weights that it starts from.

    Args:
        known: a run whose weights will be put there anyway; then nothing is read from the start.
    """
    if known is not None:
        return known.backbone.build
    if config.start is None or is_timm_name(config.start):
        return lambda: create_backbone(config, split)
    folder = Path(config.start)
    there = read_start(folder)
    _check_reads(there, config, split)
    taken = there.backbone if config.model == MODEL_OF_START else None

    def make() -> nn.Module:
        backbone = create_backbone(config, split) if taken is None else taken.build()
        copy_backbone(folder, backbone, with_alpha=taken is not None)
        return backbone

    return make


def seen_validation(
    config: TrainConfig, val: Split, *, data_digest: str | None = None
) -> str | None:
    """Return a warning where a run that `config` starts from was trained on other cuts of the same data, or None.

    What is validation here was training there: temperature and threshold would be fitted to answers that are known.

    Args:
        data_digest: of the training data here; those of the other run may have lain in another place.
    """
    place, seen = config.start, set[str]()
    while place is not None and place not in seen and _is_run_folder(place):
        seen.add(place)
        run = read_run_config(Path(place))
        there = run.train
        is_one_place = _absolute(there.data) == _absolute(config.data)
        is_shared = is_one_place or (data_digest is not None and data_digest == run.data_digest)
        if (
            is_shared
            and {*run.class_names} & {*val.class_names}
            and _is_cut_otherwise(there, config, val)
        ):
            return (
                f"warning: {place} was trained on most of this validation split, so that temperature and threshold will be "
                f"too confident; its split is that of seed {there.seed} and val_fraction {there.val_fraction:g} "
                "(--seed, --val-fraction)"
            )
        place = there.start
    return None


def _is_run_folder(place: str) -> bool:
    return not is_timm_name(place) and is_run(Path(place))


def _is_cut_otherwise(there: TrainConfig, here: TrainConfig, val: Split) -> bool:
    """Return whether `val`, the validation split here, is another one there."""
    if (there.seed, there.val_fraction) == (here.seed, here.val_fraction):
        return False
    # A folder with a validation set of its own has the same one whatever the seed.
    _, theirs = load_splits(
        dataclasses.replace(here, seed=there.seed, val_fraction=there.val_fraction)
    )
    return not (np.array_equal(theirs.y, val.y) and np.array_equal(theirs.x, val.x))


def record_backbone(
    backbone: nn.Module, config: TrainConfig, known: RunConfig | None = None
) -> BackboneRecord:
    """Return the record of a backbone that `backbone_factory` made."""
    if known is not None:
        return known.backbone
    if config.model == MODEL_OF_START:
        return read_start(Path(config.start or "")).backbone
    return describe_backbone(backbone, config)


def _folder_to_start_from(config: TrainConfig) -> Path:
    folder = Path(_absolute(config.start or ""))
    if not config.start or not folder.is_dir():
        raise ConfigError(
            f"start ('{config.start}') is no folder; give that of a run, or the name of a timm model (--from)."
        )
    if not config.pretrained:
        raise ConfigError(
            f"pretrained is off, and start ({folder}) is a folder, whose weights are taken; leave out one of them "
            "(--no-pretrained or --from)."
        )
    return folder


def _absolute(start: str) -> str:
    return str(Path(start).expanduser().resolve())


def _size(there: StartModel | RunConfig) -> str:
    return "for points" if there.img_size is None else f"with images of {there.img_size} pixels"


def _check_reads(there: StartModel, config: TrainConfig, split: Split) -> None:
    """Raise where the model to start from cannot read the data."""
    if split.is_image != (there.img_size is not None):
        found, wanted = ("images", "points") if split.is_image else ("points", "images")
        raise ConfigError(
            f"{split.name} holds {found}, but the model of {config.start} reads {wanted}."
        )
    what, name = ("channels", "in_chans") if split.is_image else ("coordinates", "num_inputs")
    if there.channels in (None, split.x.shape[-1]) or name in config.model_overrides:
        return
    way_out = f"; of image files channels={there.channels} (--channels) makes as many"
    raise ConfigError(
        f"{split.name} has {split.x.shape[-1]} {what}, but the model of {config.start} takes {there.channels}"
        f"{way_out if split.is_image else ''}."
    )


def copy_backbone(folder: Path, target: nn.Module, *, with_alpha: bool = False) -> None:
    """Put the weights of the run or model in `folder` into `target`, interpolated to its image size."""
    loaded = load(folder)
    source: Any = loaded.model if isinstance(loaded, PosteriorClassifier) else loaded
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
        try:
            source.set_input_size(size)
        except (AssertionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the model in {folder} cannot take images of {size} pixels ({error}); {_way_out(loaded)}"
            ) from error
    wanted = target.state_dict()
    found = {name: value for name, value in source.state_dict().items() if name in wanted}
    for name, value in wanted.items():
        if name not in found or found[name].shape != value.shape:
            there = f"has shape {tuple(found[name].shape)}" if name in found else "is missing"
            raise ConfigError(
                f"{folder} cannot start this model: '{name}' of shape {tuple(value.shape)} {there} "
                f"there; {_way_out(loaded)}"
            )
    # Alpha belongs to the new run's settings, not to the old weights, unless the model has no settings but the old.
    kept = {name: wanted[name] for name in wanted if name.rpartition(".")[2] == "alpha"}
    target.load_state_dict({**found, **({} if with_alpha else kept)})


def _way_out(loaded: Any) -> str:
    """Return what helps against weights that do not fit."""
    if isinstance(loaded, Run):
        return "name neither a model nor a recipe, which names one, and no size of it: then that of the run is taken."
    return "leave out the model and its size: then that of the folder is taken."
