"""One method trained on one draw of two moons: measured, drawn on the grid, and kept in a folder."""

import io
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError, from_record, make_generator, seed_everything, to_record
from lrformer.evaluation.predict import wide
from lrformer.heads import Predictive
from lrformer.heads.predictive import concatenate
from lrformer.methods import Method
from lrformer.metrics import accuracy, negative_log_likelihood
from lrformer.recipes.contenders import CONTENDERS
from lrformer.recipes.moons import (
    GRID_SHAPE,
    NUM_POINTS,
    DistanceAwareness,
    distance_awareness,
    draw_moons,
    grid_points,
    hold_out,
    synthetic_outliers,
)
from lrformer.recipes.point_training import PointTraining, fit_points
from lrformer.training.atomic_files import read_json, replace_file, write_json

POINTS_AT_A_TIME = 2048


@dataclass(frozen=True, kw_only=True)
class MoonsRun:
    """What one run is asked to do.

    Attributes:
        contender: name of a contender.
        value: of its knob.
        is_tuning: whether it is measured on held-out training points and synthetic outliers, and
            neither on test points nor on the grid.
    """

    contender: str
    value: float
    seed: int
    is_tuning: bool = False
    training: PointTraining = field(default_factory=PointTraining)
    num_points: int = NUM_POINTS
    grid_shape: tuple[int, ...] = GRID_SHAPE

    @property
    def name(self) -> str:
        """Return a name for files."""
        if self.is_tuning:
            return f"tune-{self.contender}-{self.value:g}"
        return f"{self.contender}-seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class MoonsResult:
    """What was measured.

    Attributes:
        contender: its whole definition, so that a changed one is not taken for the same.
        accuracy: on test points, or on held-out points where the run is for tuning.
        awareness: by the contender's own score.
        by_score: the same by every score that the method gives, for readers who doubt the choice.
        loss: of the last epoch.
        seconds: of training, posterior included.
    """

    run: MoonsRun
    contender: dict[str, Any]
    accuracy: float
    nll: float
    awareness: DistanceAwareness
    by_score: dict[str, Any]
    loss: float
    seconds: float


def run_moons(run: MoonsRun, folder: Path) -> MoonsResult:
    """Return what the run measures; a run that is finished in `folder` is not made again.

    Raises:
        ConfigError: when `folder` has a run of this name with other settings.
    """
    if (found := load_result(run, folder)) is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    log_path(run, folder).unlink(missing_ok=True)
    contender = CONTENDERS[run.contender]
    moons = draw_moons(run.seed, num_points=run.num_points)
    if run.is_tuning:
        moons = hold_out(moons, seed=run.seed)
        elsewhere = synthetic_outliers(moons, seed=run.seed)
    else:
        rows, columns = run.grid_shape
        elsewhere = grid_points((rows, columns))
    with torch.random.fork_rng(devices=[]):
        seed_everything(run.seed)
        started = time.monotonic()
        method = contender.create(run.value)
        loss = fit_points(
            method,
            moons.standardize(moons.train_x),
            torch.from_numpy(moons.train_y),
            contender.training(run.training, run.value),
            generator=make_generator(run.seed),
            log=log_path(run, folder),
        )
        seconds = time.monotonic() - started
    known = predict_points(method, moons.standardize(moons.test_x), seed=run.seed)
    outside = predict_points(method, moons.standardize(elsewhere), seed=run.seed)
    by_score = _by_score(known, outside, moons.distance(elsewhere), is_tuning=run.is_tuning)
    probs = known.probs.numpy()
    result = MoonsResult(
        run=run,
        contender=to_record(contender),
        accuracy=accuracy(probs, moons.test_y),
        nll=negative_log_likelihood(probs, moons.test_y),
        awareness=by_score[contender.score],
        by_score={name: to_record(value) for name, value in by_score.items()},
        loss=loss,
        seconds=seconds,
    )
    if not run.is_tuning:
        uncertainty = outside.uncertainty(contender.score).numpy()
        _save_maps(run, folder, uncertainty, outside.probs[:, 1].numpy())
    # The figures come last: a run that has them is finished.
    write_json(_result_path(run, folder), to_record(result))
    return result


def load_result(run: MoonsRun, folder: Path) -> MoonsResult | None:
    """Return what a finished run measured, or None."""
    path = _result_path(run, folder)
    if not path.is_file():
        return None
    result = from_record(MoonsResult, read_json(path))
    made = (to_record(result.run), result.contender)
    if made != (to_record(run), to_record(CONTENDERS[run.contender])):
        raise ConfigError(
            f"{path} was made with other settings than are asked for now ({run}); choose another "
            "folder, or remove the file."
        )
    return result


def load_maps(
    run: MoonsRun, folder: Path
) -> tuple[Float[np.ndarray, "rows columns"], Float[np.ndarray, "rows columns"]]:
    """Return uncertainty and probability of the second class on the grid, the lowest row first."""
    with np.load(_maps_path(run, folder), allow_pickle=False) as file:
        return file["uncertainty"], file["probability"]


def log_path(run: MoonsRun, folder: Path) -> Path:
    """Return where the run writes a line after every epoch."""
    return folder / f"{run.name}.jsonl"


@torch.no_grad()
def predict_points(method: Method, x: Float[Tensor, "b 2"], *, seed: int = 0) -> Predictive:
    """Return the prediction for standardized points, in float64."""
    parts = []
    for block in x.split(POINTS_AT_A_TIME):
        # The same draws for every block: the map of a sampling method has no seams.
        parts.append(wide(method.predict(block, make_generator(seed))))
    return concatenate(parts)


def _by_score(
    known: Predictive, outside: Predictive, distance: np.ndarray, *, is_tuning: bool
) -> dict[str, DistanceAwareness]:
    """Return the figures of every score."""
    # All outliers left the data by construction; on the grid only points farther than FAR count.
    options = {"far": 0.0} if is_tuning else {}
    return {
        score: distance_awareness(
            known.uncertainty(score).numpy(),
            outside.uncertainty(score).numpy(),
            distance,
            **options,
        )
        for score in outside.scores
    }


def _save_maps(
    run: MoonsRun, folder: Path, uncertainty: np.ndarray, probability: np.ndarray
) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        uncertainty=uncertainty.reshape(run.grid_shape).astype(np.float32),
        probability=probability.reshape(run.grid_shape).astype(np.float32),
    )
    replace_file(_maps_path(run, folder), buffer.getvalue())


def _result_path(run: MoonsRun, folder: Path) -> Path:
    return folder / f"{run.name}.json"


def _maps_path(run: MoonsRun, folder: Path) -> Path:
    return folder / f"{run.name}.npz"
