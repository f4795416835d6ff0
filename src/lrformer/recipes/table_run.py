"""One run of a table: trained, its posterior fitted, evaluated at once, and turned into an entry of the record."""

import gc
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lrformer.core import to_record
from lrformer.evaluation import EvaluationConfig, evaluate_run, save_scores
from lrformer.recipes.score_choice import find_outliers
from lrformer.recipes.table import Table, TableRow, variant_slug
from lrformer.recipes.table_record import TableRun, made_by, pack_scores, without_place
from lrformer.training import RuntimeConfig, TrainConfig, train
from lrformer.training.journal import read_log
from lrformer.training.metrics_file import is_finished, read_training

RAW, CALIBRATED = "raw", "calibrated"
CURVES = ("accuracy", "nll", "ece")
# A thousand draws take longer than the training of a small model; a spread over seeds is the better interval.
NUM_DRAWS = 200


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """How the runs of a table are carried out and judged; nothing here changes what is trained.

    Attributes:
        ood: unknown sets, as `lrformer evaluate --ood` takes them.
        batch_size: of evaluation.
        command: that made the runs, for the record.
    """

    ood: tuple[str, ...] = ()
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    evaluation: EvaluationConfig = field(
        default_factory=lambda: EvaluationConfig(num_draws=NUM_DRAWS)
    )
    batch_size: int = 512
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run that a table asks for."""

    row: TableRow
    config: TrainConfig
    variant: dict[str, Any]
    is_calibrated: bool

    @property
    def name(self) -> str:
        """Return the row and the seed, for a reader."""
        return f"{self.row.name}, seed {self.config.seed}"


def first_folder(out: Path, table: Table, run: PlannedRun) -> Path:
    """Return the folder of the first attempt at a run."""
    return out / table.name / variant_slug(run.variant) / run.row.name / f"seed-{run.config.seed}"


def run_folder(out: Path, table: Table, run: PlannedRun, *, num_failed: int) -> Path:
    """Return where a run is made: a new attempt has a new folder, unless one is trained and lacks its evaluation."""
    folder = first_folder(out, table, run)
    finished = (attempt for attempt in attempt_folders(folder) if is_finished(attempt))
    again = folder.with_name(f"{folder.name}-again-{num_failed}")
    return next(finished, again if num_failed else folder)


def attempt_folders(folder: Path) -> list[Path]:
    """Return the folders of all attempts at the run that `folder` was the first for, the first one first."""
    return [folder, *sorted(folder.parent.glob(f"{folder.name}-again-*"))]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run of another row that was trained in the very same way."""

    row: str
    folder: Path


def make_run(
    planned: PlannedRun, folder: Path, how: Circumstances, trained: Trained | None = None
) -> TableRun:
    """Return the entry of a run that is trained and evaluated in `folder`, or goes on there.

    Args:
        trained: whose weights are taken, if there is such a run.
    """
    if how.runtime.compile:
        # What was compiled for the rows before would count against the limit of one function.
        torch.compiler.reset()
    try:
        return _make(planned, folder, how, trained)
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def failed_run(
    planned: PlannedRun, error: Exception, how: Circumstances, folder: Path | None = None
) -> TableRun:
    """Return the entry of a run that ended in an error; where its folder lies is left out of what it says."""
    device = "cuda" if torch.cuda.is_available() and how.runtime.device != "cpu" else "cpu"
    words = str(error) if folder is None else str(error).replace(str(folder), "its folder")
    text = words.strip().splitlines()
    return TableRun(
        row=planned.row.name,
        seed=planned.config.seed,
        variant=planned.variant,
        config=without_place(planned.config),
        ood=how.ood,
        error=f"{type(error).__name__}: {text[0] if text else ''}".strip(),
        made=made_by(_device_name(torch.device(device)), how.command),
    )


def _make(
    planned: PlannedRun, folder: Path, how: Circumstances, trained: Trained | None
) -> TableRun:
    config = planned.config
    source = None if trained is None else trained.folder
    run = train(config, folder, runtime=how.runtime, weights_of=source)
    began = time.monotonic()
    # Unknown sets are looked at in the way of the table alone: their draws are what takes time.
    own = CALIBRATED if planned.is_calibrated else RAW
    scores = {
        name: evaluate_run(
            run,
            ood=list(how.ood) if name == own else [],
            config=how.evaluation,
            is_calibrated=name == CALIBRATED,
            batch_size=how.batch_size,
            root=config.root,
        ).scores
        for name in (RAW, CALIBRATED)
    }
    outliers = find_outliers(
        run, is_calibrated=planned.is_calibrated, batch_size=how.batch_size, root=config.root
    )
    save_scores(scores[own], folder)
    training = read_training(folder)
    if "weights_of" in training:
        # The way to the folder of a seed; also where only the evaluation was left to do.
        training["weights_of"] = Path(training["weights_of"]).parent.name
    return TableRun(
        row=planned.row.name,
        seed=config.seed,
        variant=planned.variant,
        config=without_place(config),
        ood=how.ood,
        figures={name: pack_scores(found) for name, found in scores.items()},
        curve=_curve(folder),
        outliers=outliers,
        decision=to_record(run.decision),
        training=training,
        data_digest=run.config.data_digest,
        seconds={"training": training["seconds"], "evaluation": time.monotonic() - began},
        made=made_by(_device_name(run.device), how.command),
    )


def _curve(folder: Path) -> dict[str, list[float]]:
    """Return the figures of the validation split by epoch, counted from 1."""
    entries = [entry for entry in read_log(folder) if "val_accuracy" in entry]
    curve = {"epoch": [entry["epoch"] + 1 for entry in entries]}
    return curve | {name: [round(entry[f"val_{name}"], 5) for entry in entries] for name in CURVES}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
