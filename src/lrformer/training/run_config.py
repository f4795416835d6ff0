"""`config.json`: schema, version, `"kind": "run"`, and everything that made the run."""

from dataclasses import dataclass
from pathlib import Path

from lrformer._version import __version__
from lrformer.core import ConfigError, from_record, to_record
from lrformer.core.registry import did_you_mean
from lrformer.data.loading import is_image_folder
from lrformer.training.atomic_files import WAY_OUT_OF_CONFIG, read_json, write_json
from lrformer.training.backbone import BackboneRecord
from lrformer.training.config import TrainConfig

SCHEMA = 1
KIND = "run"
CONFIG_FILE = "config.json"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that made a run, and everything that a prediction needs to know about its inputs.

    Attributes:
        train: what was asked for.
        backbone: the model, resolved: it is rebuilt without presets, timm weights or a network.
        class_names: in the order of the logits.
        mean: what is subtracted from inputs, per channel; images are scaled to [0, 1] first.
        std: what they are divided by.
        img_size: side of the model's images; None for points.
        data_digest: of the training data, where they lie in files; runs from before it was kept have none.
        scales_files: whether training images were scaled as they were read from files, and not on the device; None in
            runs from before it was kept.
    """

    train: TrainConfig
    backbone: BackboneRecord
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    img_size: int | None
    data_digest: str | None = None
    scales_files: bool | None = None

    @property
    def is_scaled_as_files(self) -> bool:
        """Return whether images are brought to the model's size in the way of files, as in training."""
        return is_image_folder(self.train.data) if self.scales_files is None else self.scales_files

    @property
    def num_classes(self) -> int:
        """Return the number of logits."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Return the channels of an image, or the coordinates of a point."""
        return len(self.mean)


def write_run_config(folder: Path, config: RunConfig) -> None:
    """Write `config.json`: from now on the folder belongs to this run."""
    record = {
        "schema": SCHEMA,
        "lrformer": __version__,
        "kind": KIND,
        "config": to_record(config),
    }
    write_json(folder / CONFIG_FILE, record)


def check_there(folder: Path) -> None:
    """Raise where `folder` is that of neither a run nor a saved model, and say which one may be meant."""
    if (folder / CONFIG_FILE).is_file():
        return
    inside = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG_FILE}"))
    if inside:
        raise ConfigError(
            f"{folder} is no run, but {len(inside)} are in it: name them, such as {', '.join(inside[:3])}."
        )
    beside = [str(path.parent) for path in folder.parent.glob(f"*/{CONFIG_FILE}")]
    raise ConfigError(
        f"{folder} is not the folder of a run or of a saved model: there is no {CONFIG_FILE} in it."
        f"{did_you_mean(str(folder), beside)}"
    )


def read_run_config(folder: Path) -> RunConfig:
    """Return what made the run in `folder`; an older schema is migrated, a newer one refused."""
    check_there(folder)
    path = folder / CONFIG_FILE
    record = read_json(path, way_out=WAY_OUT_OF_CONFIG)
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind is None:
        raise ConfigError(f"{path} is not the config of a run; {WAY_OUT_OF_CONFIG}")
    if kind != KIND:
        raise ConfigError(f"{path} describes a '{kind}', not a run; lrformer.load opens it.")
    schema = record.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise ConfigError(f"{path} has no valid schema number ({schema!r}); {WAY_OUT_OF_CONFIG}")
    if schema > SCHEMA:
        raise ConfigError(
            f"{path} has schema {schema}, written by lrformer {record.get('lrformer')}; this version "
            f"({__version__}) reads up to {SCHEMA}. Update lrformer."
        )
    try:
        return from_record(RunConfig, record.get("config"))
    except (ConfigError, TypeError) as error:
        raise ConfigError(
            f"{path} is not the config of a run ({str(error).rstrip('.')}); {WAY_OUT_OF_CONFIG}"
        ) from error


def is_run(folder: Path) -> bool:
    """Return whether `folder` holds a run, finished or not, and not a saved model."""
    path = folder / CONFIG_FILE
    record = read_json(path, way_out=WAY_OUT_OF_CONFIG) if path.is_file() else None
    return isinstance(record, dict) and record.get("kind") == KIND
