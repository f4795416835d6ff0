"""What `metrics.json` of a run says: the section `training` is written last, others beside it by whoever measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lrformer.core import ConfigError
from lrformer.training.atomic_files import read_json, write_json

METRICS_FILE = "metrics.json"
TRAINING = "training"
_WAY_OUT = "it is damaged. Restore it from a copy, or delete it: predict, evaluate and bounds work without it."


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return every section; none where the file is not there."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return {}
    metrics = read_json(path, way_out=_WAY_OUT)
    if not isinstance(metrics, dict) or not all(
        isinstance(part, dict) for part in metrics.values()
    ):
        raise ConfigError(f"{path} holds no metrics; {_WAY_OUT}")
    return metrics


def read_training(folder: Path) -> dict[str, Any]:
    """Return what the metrics of the finished run in `folder` say of its training."""
    training = read_metrics(folder).get(TRAINING, {})
    judged = training.get("validation_calibrated")
    is_whole = isinstance(judged, dict) and all(
        isinstance(judged.get(name), int | float | None) for name in ("accuracy", "nll", "ece")
    )
    if not (is_whole and isinstance(training.get("seconds"), int | float)):
        raise ConfigError(f"{folder / METRICS_FILE} says nothing of its training; {_WAY_OUT}")
    return training


def is_finished(folder: Path) -> bool:
    """Return whether training has written everything: the metrics come last."""
    return TRAINING in read_metrics(folder)


def update_metrics(folder: Path, section: str, values: Mapping[str, Any]) -> None:
    """Put `values` under `section`; other sections stay."""
    write_json(folder / METRICS_FILE, {**read_metrics(folder), section: dict(values)})


def replace_metrics(folder: Path, section: str, values: Mapping[str, Any]) -> None:
    """Leave nothing but `values` under `section`, in one step."""
    write_json(folder / METRICS_FILE, {section: dict(values)})


def forget_metrics(folder: Path) -> None:
    """Remove the file."""
    (folder / METRICS_FILE).unlink(missing_ok=True)
