"""The weights of the epoch that the validation split liked best, beside those that are in training."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrformer.methods import Method
from lrformer.training import state as saved
from lrformer.training.config import TrainConfig
from lrformer.training.journal import read_log
from lrformer.training.run_folder import load_state

VAL_NLL = "val_nll"
# After the temperature that fits the epoch: what a run keeps has one as well, and is judged as it will be read.
CALIBRATED_NLL = "nll_calibrated"
_NLL, _EPOCH, _WEIGHTS = "nll", "epoch", "weights"


# By how much the NLL has to rise from its lowest to be worth a word.
RISE = 1.2


def kept_epochs(folder: Path) -> list[int]:
    """Return the epoch of each stage that a run with `keep="best"` has kept by its log, counted from 1."""
    name = f"val_{CALIBRATED_NLL}"
    stages: dict[int, list[dict[str, Any]]] = {}
    for entry in read_log(folder):
        if name in entry:
            stages.setdefault(entry.get("stage", 0), []).append(entry)
    return [min(looks, key=lambda look: look[name])["epoch"] + 1 for looks in stages.values()]


def describe_overfitting(
    config: TrainConfig, folder: Path, calibrated: Mapping[str, Any]
) -> str | None:
    """Return a line where the validation NLL has risen long before the last epoch, which is kept, or None."""
    looks = [entry for entry in read_log(folder) if VAL_NLL in entry]
    if config.keep == "best" or not looks or looks[-1].get("stage", 0):
        return None
    best, last = min(looks, key=lambda look: look[VAL_NLL]), looks[-1]
    if last[VAL_NLL] < RISE * best[VAL_NLL]:
        return None
    return (
        f"note: it has overfitted: the validation nll was lowest after epoch {best['epoch'] + 1} ({best[VAL_NLL]:.4f}) and is "
        f"{last[VAL_NLL]:.4f} now, {calibrated['nll']:.4f} after the temperature. Augmentation (--augment), fewer epochs, or "
        "the best epoch (--keep best) may do better"
    )


class BestEpoch:
    """What a method was after the epoch of a stage with the lowest validation NLL so far, after the temperature.

    Attributes:
        nll: of that epoch.
        epoch: its number, counted from 1; 0 where none was looked at.
    """

    def __init__(self) -> None:
        self.nll, self.epoch = math.inf, 0
        self._weights: dict[str, Tensor] = {}

    def look(self, method: Method, *, nll: float, epoch: int) -> None:
        """Keep a copy of `method` if it is better than what is kept; of two that are alike the first stays."""
        if nll < self.nll:
            self.nll, self.epoch = nll, epoch
            self._weights = {
                name: value.detach().cpu().clone() for name, value in method.state_dict().items()
            }

    def put_back(self, method: Method) -> None:
        """Make `method` what it was after the best epoch."""
        if self.epoch:
            load_state(method, self._weights, where="the best epoch")

    def tensors(self) -> dict[str, Tensor]:
        """Return what a resumed run needs."""
        if not self.epoch:
            return {}
        return {
            _NLL: torch.tensor(self.nll, dtype=torch.float64),
            _EPOCH: torch.tensor(self.epoch),
            **saved.with_prefix(self._weights, _WEIGHTS),
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` returned."""
        if _NLL in tensors:
            self.nll, self.epoch = float(tensors[_NLL]), int(tensors[_EPOCH])
            self._weights = saved.strip_prefix(dict(tensors), _WEIGHTS)
