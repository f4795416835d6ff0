"""What an unfinished run needs to go on: one safetensors file, replaced in one step."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrformer.core import ConfigError, from_record, to_record
from lrformer.training.atomic_files import read_metadata, read_tensors, write_tensors

STATE_FOLDER = "state"
STATE_FILE = "training.safetensors"
SCHEMA = 1
OVER = "is_over"


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands: the next step to take, and what the epoch has summed up to it.

    Attributes:
        stage: member of an ensemble in training.
        epoch: epoch of the stage.
        step: step of the epoch.
        seconds: time spent on training so far.
        epoch_seconds: time spent on this epoch so far.
    """

    stage: int = 0
    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0

    def next_epoch(self) -> "Position":
        """Return the start of the epoch after this one."""
        return replace(self, epoch=self.epoch + 1, step=0, epoch_seconds=0.0)

    def next_stage(self) -> "Position":
        """Return the start of the stage after this one."""
        return replace(self, stage=self.stage + 1, epoch=0, step=0, epoch_seconds=0.0)


def state_path(folder: Path) -> Path:
    """Return where the state of the run in `folder` lies."""
    return folder / STATE_FOLDER / STATE_FILE


def write_state(
    folder: Path, position: Position, tensors: dict[str, Tensor], *, is_over: bool = False
) -> None:
    """Write the state; a crash meanwhile leaves the one before.

    Args:
        is_over: whether nothing is left to train.
    """
    metadata = {"schema": str(SCHEMA), "position": json.dumps(to_record(position))}
    if is_over:
        metadata[OVER] = "true"
    write_tensors(state_path(folder), tensors, metadata=metadata)


def read_state(folder: Path) -> tuple[Position, dict[str, Tensor]] | None:
    """Return the position and the tensors of an unfinished run, or None where nothing was written yet."""
    path = state_path(folder)
    if not path.is_file():
        return None
    tensors, metadata = read_tensors(path)
    if metadata.get("schema") != str(SCHEMA):
        raise ConfigError(
            f"{path} has schema {metadata.get('schema')}; this version goes on from schema {SCHEMA} "
            "only. Finish the run with the version that began it, or remove the folder."
        )
    return from_record(Position, json.loads(metadata["position"])), tensors


def is_training_over(folder: Path) -> bool:
    """Return whether an unfinished run has nothing left to train: its posterior and what follows are missing.

    A state that cannot be read is not known to be; whoever goes on with it is told what is wrong.
    """
    path = state_path(folder)
    try:
        return path.is_file() and OVER in read_metadata(path)
    except ConfigError:
        return False


def remove_state(folder: Path) -> None:
    """Remove the state of a finished run."""
    shutil.rmtree(folder / STATE_FOLDER, ignore_errors=True)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimizer as named tensors."""
    return {
        f"{index}.{name}": value
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put tensors of `optimizer_tensors` into a new optimizer over the same parameters."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate  # loading copies a tensor; a schedule holds on to the first


def generator_tensors(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the global generators that dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def load_generators(tensors: dict[str, Tensor], device: torch.device) -> None:
    """Put the global generators where they were."""
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)


def strip_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, without it."""
    start = f"{prefix}/"
    return {n.removeprefix(start): value for n, value in tensors.items() if n.startswith(start)}


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors under names that start with `prefix`."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}
