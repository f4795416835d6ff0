"""Figure 1 of the paper: uncertainty on two moons, method by method, with figures that a picture cannot flatter."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrformer.core import ConfigError, to_record
from lrformer.metrics import SeedInterval, seed_interval
from lrformer.recipes.circumstances import circumstances
from lrformer.recipes.contenders import CONTENDERS
from lrformer.recipes.jobs import Job, run_jobs
from lrformer.recipes.moons import EXTENT, FAR, GRID_SHAPE, NOISE, NUM_POINTS, draw_moons
from lrformer.recipes.moons_run import (
    MoonsResult,
    MoonsRun,
    load_maps,
    load_result,
    log_path,
    run_moons,
)
from lrformer.recipes.point_training import PointTraining
from lrformer.reports.two_moons_figure import MoonsPanel, draw_two_moons
from lrformer.training.atomic_files import write_json

NUM_SEEDS = 5
# No seed of an evaluated run: what a method is tuned on is not what it is measured on.
TUNING_SEED = 1000
RUNS_FOLDER = "runs"
RECORD_FILE = "figure1.json"
PICTURE_NAME = "figure1"

Show = Callable[[int, int], None]  # epochs so far, epochs in all


@dataclass(frozen=True, kw_only=True)
class Figure1Config:
    """What is compared: which contenders, over how many seeds, at which size.

    Attributes:
        methods: names of contenders.
    """

    methods: tuple[str, ...] = tuple(CONTENDERS)
    num_seeds: int = NUM_SEEDS
    training: PointTraining = field(default_factory=PointTraining)
    num_points: int = NUM_POINTS
    grid_shape: tuple[int, ...] = GRID_SHAPE

    def __post_init__(self) -> None:
        for name in self.methods:
            CONTENDERS[name]  # raises for a wrong name, with the nearest right one
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise ConfigError(f"methods ({self.methods}) must name at least one, each once.")
        if self.num_seeds < 1:
            raise ConfigError(f"num_seeds ({self.num_seeds}) must be at least 1.")

    def run(self, contender: str, value: float, seed: int, *, is_tuning: bool = False) -> MoonsRun:
        """Return one run of this comparison."""
        return MoonsRun(
            contender=contender,
            value=value,
            seed=seed,
            is_tuning=is_tuning,
            training=self.training,
            num_points=self.num_points,
            grid_shape=self.grid_shape,
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender over the seeds: the value that tuning chose, and what was measured with it."""

    contender: str
    title: str
    score: str
    knob: str
    value: float
    accuracy: SeedInterval
    auroc: SeedInterval
    rank_correlation: SeedInterval
    results: tuple[MoonsResult, ...]


def reproduce_figure1(
    out: Path,
    config: Figure1Config | None = None,
    *,
    num_workers: int | None = None,
    show: Show | None = None,
) -> list[Row]:
    """Return what was measured, after writing picture and record to `out`.

    Runs that `out` holds already are not made again, so the same call goes on after an interruption.

    Args:
        num_workers: processes at a time; None is one for each core, 0 runs in this process.
        show: called with the epochs that are done and those in all.
    """
    config = config or Figure1Config()
    folder = out / RUNS_FOLDER
    tuning = [
        config.run(name, value, TUNING_SEED, is_tuning=True)
        for name in dict.fromkeys(CONTENDERS[m].tuned_as or m for m in config.methods)
        for value in CONTENDERS[name].values
    ]
    plan = [
        config.run(name, CONTENDERS[name].default, seed)
        for seed in range(config.num_seeds)
        for name in config.methods
    ]
    started = time.monotonic()
    counter = _Counter(show, total=sum(map(num_epochs, tuning)) + sum(map(num_epochs, plan)))
    tuned = _run_all(tuning, folder, num_workers, counter)
    chosen = {name: choose(name, tuned) for name in config.methods}
    runs = [config.run(run.contender, chosen[run.contender], run.seed) for run in plan]
    results = _run_all(runs, folder, num_workers, counter)
    rows = [summarize(name, chosen[name], results) for name in config.methods]
    seconds = time.monotonic() - started
    write_json(out / RECORD_FILE, _record(config, rows, tuned, seconds))
    draw(rows, folder, save=tuple(out / f"{PICTURE_NAME}.{kind}" for kind in ("png", "svg")))
    return rows


def choose(contender: str, tuned: Sequence[MoonsResult]) -> float:
    """Return the value with the best figures on held-out points and synthetic outliers.

    Accuracy comes first: an uncertainty that costs answers is not wanted. Then the sum of AUROC and
    rank correlation; of equals the first.
    """
    name = CONTENDERS[contender].tuned_as or contender
    tried = [result for result in tuned if result.run.contender == name]
    best = max(tried, key=lambda r: (r.accuracy, r.awareness.auroc + r.awareness.rank_correlation))
    return best.run.value


def draw(rows: Sequence[Row], folder: Path, *, save: tuple[Path, ...], columns: int = 4) -> None:
    """Draw the first seed of every row, with the figures over all seeds below each panel."""
    panels = []
    for row in rows:
        uncertainty, probability = load_maps(row.results[0].run, folder)
        panels.append(
            MoonsPanel(
                title=row.title,
                score=row.score,
                caption=f"AUROC {write_interval(row.auroc)}\nrank corr. "
                f"{write_interval(row.rank_correlation)}",
                uncertainty=uncertainty,
                probability=probability,
            )
        )
    first = rows[0].results[0].run
    moons = draw_moons(first.seed, num_points=first.num_points)
    draw_two_moons(panels, moons.train_x, moons.train_y, extent=EXTENT, columns=columns, save=save)


def num_epochs(run: MoonsRun) -> int:
    """Return the epochs of a run over all members of an ensemble."""
    members = CONTENDERS[run.contender].method_overrides.get("num_members", 1)
    return run.training.epochs * members


def write_interval(interval: SeedInterval) -> str:
    """Return `0.921 ± 0.012`, or the mean alone where there is one seed."""
    if interval.high is None:
        return f"{interval.mean:.3f}"
    return f"{interval.mean:.3f} ± {interval.high - interval.mean:.3f}"


class _Counter:
    """Adds up the epochs of jobs that are shown one by one."""

    def __init__(self, show: Show | None, *, total: int) -> None:
        self.show = show or (lambda *_: None)
        self.total = total
        self.finished = 0

    def watch(self, runs: Sequence[MoonsRun]) -> Callable[[int, int], None]:
        """Return the function to be called with the number of a run and its epochs."""
        done = [0] * len(runs)

        def update(number: int, epochs: int) -> None:
            done[number] = epochs
            self.show(self.finished + sum(done), self.total)

        return update

    def finish(self, runs: Sequence[MoonsRun]) -> None:
        """Count every epoch of these runs as done."""
        self.finished += sum(map(num_epochs, runs))
        self.show(self.finished, self.total)


def _run_all(
    runs: Sequence[MoonsRun], folder: Path, num_workers: int | None, counter: _Counter
) -> list[MoonsResult]:
    """Return the results of all runs; only those that are not finished are started."""
    missing = [run for run in runs if load_result(run, folder) is None]
    counter.finish([run for run in runs if run not in missing])
    # The longest first, so that no core waits for an ensemble at the end.
    missing.sort(key=num_epochs, reverse=True)
    jobs = [
        Job(function=run_moons, arguments=(run, folder), log=log_path(run, folder))
        for run in missing
    ]
    run_jobs(jobs, num_workers=num_workers, show=counter.watch(missing))
    counter.finish(missing)
    results = [load_result(run, folder) for run in runs]
    return [result for result in results if result is not None]


def summarize(name: str, value: float, results: Sequence[MoonsResult]) -> Row:
    """Return the row of one contender, from its results among `results`."""
    own = tuple(result for result in results if result.run.contender == name)
    contender = CONTENDERS[name]
    return Row(
        contender=name,
        title=contender.title,
        score=contender.score,
        knob=contender.knob,
        value=value,
        accuracy=seed_interval([result.accuracy for result in own]),
        auroc=seed_interval([result.awareness.auroc for result in own]),
        rank_correlation=seed_interval([result.awareness.rank_correlation for result in own]),
        results=own,
    )


def _record(
    config: Figure1Config, rows: Sequence[Row], tuned: Sequence[MoonsResult], seconds: float
) -> dict[str, Any]:
    every = [*tuned, *(result for row in rows for result in row.results)]
    return {
        "kind": "figure1",
        "command": "lrformer reproduce figure1",
        **circumstances(),
        # Wall time counts this call alone; the sum of the runs is the same however they were spread.
        "seconds_of_this_call": seconds,
        "seconds_of_all_runs": sum(result.seconds for result in every),
        "data": {"noise": NOISE, "num_train": config.num_points, "num_test": config.num_points},
        "grid": {"extent": EXTENT, "shape": config.grid_shape, "far": FAR},
        "config": to_record(config),
        "tuning": {
            "seed": TUNING_SEED,
            "rule": "accuracy on held-out training points, then AUROC plus rank correlation on "
            "synthetic outliers made from the training points",
            "tried": [
                {
                    "contender": result.run.contender,
                    "knob": CONTENDERS[result.run.contender].knob,
                    "value": result.run.value,
                    "accuracy": result.accuracy,
                    "auroc": result.awareness.auroc,
                    "rank_correlation": result.awareness.rank_correlation,
                }
                for result in tuned
            ],
        },
        "rows": [to_record(row) for row in rows],
    }
