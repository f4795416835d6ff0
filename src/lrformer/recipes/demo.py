"""The demo: a plain transformer beside LRFormer, on digits of which half are unknown, and on two moons."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrformer.core import ConfigError, to_record
from lrformer.recipes.circumstances import circumstances
from lrformer.recipes.comparison import ComparedMetric, ComparisonRow, compare
from lrformer.recipes.contenders import CONTENDERS
from lrformer.recipes.digits_run import digits_figures, measure_speed, run_digits
from lrformer.recipes.figure1 import Row, draw, summarize
from lrformer.recipes.jobs import Job, run_jobs
from lrformer.recipes.moons import GRID_SHAPE, NUM_POINTS
from lrformer.recipes.moons_run import MoonsRun, log_path, run_moons
from lrformer.recipes.point_training import PointTraining
from lrformer.recipes.score_choice import find_outliers
from lrformer.reports import write_report
from lrformer.training import OptimizerConfig, TrainConfig, load_run
from lrformer.training.atomic_files import check_writable, write_json
from lrformer.training.run_folder import LOG_FILE
from lrformer.training.score_choice import choose_score

PLAIN, OURS, MOONS = "plain transformer", "LRFormer", "two moons"
KNOWN_DIGITS = (0, 1, 2, 3, 4)
RECORD_FILE = "demo.json"
MOONS_PICTURE = "demo-two-moons.png"
PREDICTION_BATCH = 512
METRICS = (
    ComparedMetric(name="accuracy", title="accuracy", is_higher_better=True),
    ComparedMetric(name="ece", title="ECE", is_higher_better=False),
    ComparedMetric(name="nll", title="NLL", is_higher_better=False),
    ComparedMetric(name="auroc", title="AUROC on 5 to 9", is_higher_better=True),
    ComparedMetric(name="aupr", title="AUPR on 5 to 9", is_higher_better=True),
    ComparedMetric(
        name="images_per_second", title="images/s, one core", is_higher_better=True, digits=0
    ),
)

Show = Callable[[str, int, int], None]  # what is trained, epochs so far, epochs in all


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """How large the demo is; the defaults take less than two minutes on two cores.

    Attributes:
        epochs: of every run on digits.
        moons: training on two moons.
    """

    num_seeds: int = 3
    epochs: int = 20
    moons: PointTraining = field(default_factory=PointTraining)
    num_points: int = NUM_POINTS
    grid_shape: tuple[int, ...] = GRID_SHAPE

    def __post_init__(self) -> None:
        if self.num_seeds < 1 or self.epochs < 1:
            raise ConfigError(
                f"num_seeds ({self.num_seeds}) and epochs ({self.epochs}) must be at least 1."
            )

    def digits(self, model: str, seed: int) -> TrainConfig:
        """Return the run of one model and seed on the known digits; all but model and head is the same."""
        is_ours = model == OURS
        return TrainConfig(
            data="digits",
            classes=KNOWN_DIGITS,
            model="lrformer_digits",
            # Patches of 4 pixels: with 2 both models overfit, and are right 94% of the time, not 99%.
            model_overrides={"patch_size": 4} | ({} if is_ours else {"attention": "dot_product"}),
            method="lrformer" if is_ours else "deterministic",
            epochs=self.epochs,
            batch_size=32,
            optimizer=OptimizerConfig(lr=2e-3),
            seed=seed,
        )

    def moons_run(self, contender: str) -> MoonsRun:
        """Return the run of one contender on two moons, untuned."""
        return MoonsRun(
            contender=contender,
            value=CONTENDERS[contender].default,
            seed=0,
            training=self.moons,
            num_points=self.num_points,
            grid_shape=self.grid_shape,
        )


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What the demo measured, and the files it wrote.

    Attributes:
        rows: of the table.
        scores: by which each model finds the unknown digits in every seed, chosen on made outliers.
        moons: both models on two moons.
        report: of LRFormer's first seed.
        seconds: of this call.
    """

    rows: tuple[ComparisonRow, ...]
    scores: dict[str, str]
    moons: tuple[Row, ...]
    report: Path
    picture: Path
    record: Path
    seconds: float


def run_demo(
    out: Path,
    config: DemoConfig | None = None,
    *,
    num_workers: int | None = None,
    show: Show | None = None,
) -> Demo:
    """Return what both models are worth, after training them and writing report, picture and record to `out`.

    Runs that are finished in `out` are not made again.

    Args:
        num_workers: processes at a time; None is one for each core, 0 runs in this process.
        show: called while models train.
    """
    config = config or DemoConfig()
    check_writable(out / RECORD_FILE)
    started = time.monotonic()
    folders = {
        model: {
            seed: out / model.replace(" ", "-").lower() / f"seed-{seed}"
            for seed in range(config.num_seeds)
        }
        for model in (PLAIN, OURS)
    }
    moons = [config.moons_run(contender) for contender in ("deterministic", "lrformer")]
    moons_folder = out / "two-moons"
    _train(config, folders, moons, moons_folder, num_workers=num_workers, show=show)
    scores = {model: _choose_score(by_seed.values()) for model, by_seed in folders.items()}
    figures = _figures(folders, scores)
    rows = compare(figures[PLAIN], figures[OURS], METRICS)
    results = [run_moons(run, moons_folder) for run in moons]
    moons_rows = [
        dataclasses.replace(summarize(run.contender, run.value, results), title=title)
        for run, title in zip(moons, (PLAIN.capitalize(), OURS), strict=True)
    ]
    picture = out / MOONS_PICTURE
    draw(moons_rows, moons_folder, save=(picture,))
    report = Path(write_report(folders[OURS][0]))
    demo = Demo(
        rows=tuple(rows),
        scores=scores,
        moons=tuple(moons_rows),
        report=report,
        picture=picture,
        record=out / RECORD_FILE,
        seconds=time.monotonic() - started,
    )
    write_json(demo.record, _record(config, demo, figures))
    return demo


def _train(
    config: DemoConfig,
    folders: dict[str, dict[int, Path]],
    moons: list[MoonsRun],
    moons_folder: Path,
    *,
    num_workers: int | None,
    show: Show | None,
) -> None:
    """Train everything at once; both models of a seed are started together."""
    jobs = [
        Job(function=run_moons, arguments=(run, moons_folder), log=log_path(run, moons_folder))
        for run in moons
    ]
    kinds = [MOONS] * len(jobs)
    for seed in range(config.num_seeds):
        for model in (PLAIN, OURS):
            folder = folders[model][seed]
            arguments = (config.digits(model, seed), folder)
            jobs.append(Job(function=run_digits, arguments=arguments, log=folder / LOG_FILE))
            kinds.append(model)
    totals = {
        MOONS: len(moons) * config.moons.epochs,
        PLAIN: config.num_seeds * config.epochs,
        OURS: config.num_seeds * config.epochs,
    }
    done = [0] * len(jobs)

    def update(number: int, epochs: int) -> None:
        done[number] = epochs
        kind = kinds[number]
        if show is not None:
            same = sum(count for count, other in zip(done, kinds, strict=True) if other == kind)
            show(kind, same, totals[kind])

    run_jobs(jobs, num_workers=num_workers, show=update)


def _choose_score(folders: Iterable[Path]) -> str:
    """Return the score by which the runs of a model find outliers made of their validation digits best."""
    return choose_score(
        [
            find_outliers(load_run(folder), is_calibrated=True, batch_size=PREDICTION_BATCH)
            for folder in folders
        ]
    )


def _figures(
    folders: dict[str, dict[int, Path]], scores: dict[str, str]
) -> dict[str, dict[int, dict[str, float]]]:
    """Return the figures of every run, by model and seed."""
    figures = {
        model: {
            seed: digits_figures(folder, score=scores[model]) for seed, folder in by_seed.items()
        }
        for model, by_seed in folders.items()
    }
    for seed in folders[OURS]:
        speeds = measure_speed([folders[model][seed] for model in folders])
        for model, speed in zip(folders, speeds, strict=True):
            figures[model][seed]["images_per_second"] = speed
    return figures


def _record(
    config: DemoConfig, demo: Demo, figures: dict[str, dict[int, dict[str, float]]]
) -> dict[str, Any]:
    return {
        "kind": "demo",
        "command": "lrformer demo",
        **circumstances(),
        "seconds": demo.seconds,
        "scores": demo.scores,
        "config": to_record(config),
        "known": list(KNOWN_DIGITS),
        "runs": figures,
        "table": [to_record(row) for row in demo.rows],
        "two_moons": [to_record(row) for row in demo.moons],
    }
