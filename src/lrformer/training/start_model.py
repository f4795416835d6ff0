"""What a folder that a run starts from says of its model: the folder of a run, or of a model that was saved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lrformer.core import ConfigError, from_record
from lrformer.interop import Conversion
from lrformer.interop.hub import read_config
from lrformer.training.backbone import BackboneRecord, backbone_img_size
from lrformer.training.config import TrainConfig
from lrformer.training.run_config import check_there, is_run, read_run_config


@dataclass(frozen=True, kw_only=True)
class StartModel:
    """A model to start from, without its weights.

    Attributes:
        backbone: how it is built, without its classifier.
        img_size: side of its images; None of a model of points.
        channels: of an image, or coordinates of a point; None where a saved model does not say.
        train: what the run was asked to do; None of a saved model.
    """

    backbone: BackboneRecord
    img_size: int | None
    channels: int | None
    train: TrainConfig | None


def read_start(folder: Path) -> StartModel:
    """Return what the run or the saved model in `folder` says of its model."""
    check_there(folder)
    if is_run(folder):
        run = read_run_config(folder)
        return StartModel(
            backbone=run.backbone, img_size=run.img_size, channels=run.channels, train=run.train
        )
    config = read_config(folder)
    family, model = config["kind"], config["model"]
    # Where a model keeps its arguments.
    place = {"preset": "config", "timm": "kwargs"}.get(family)
    if place is None:
        raise ConfigError(
            f"{folder} holds a model of {family}, which train cannot go on with; train it by its own package, and fit "
            "its posterior by lrformer.fit_posterior."
        )
    settings: dict[str, Any] = model[place]
    conversion = config["conversion"]
    record = BackboneRecord(
        family=family,
        model={**model, place: {**settings, "num_classes": 0}},
        conversion=None if conversion is None else from_record(Conversion, conversion),
    )
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        img_size = backbone_img_size(record.build())
    inputs = {**settings.get("tokens", {}), **settings}
    channels = inputs.get("in_chans", inputs.get("num_inputs"))
    return StartModel(backbone=record, img_size=img_size, channels=channels, train=None)
