"""Several runs of one experiment: mean and interval over their seeds, metric by metric."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lrformer.core import ConfigError
from lrformer.evaluation.scores import EvaluatedSet, Metric, Scores
from lrformer.metrics import seed_interval
from lrformer.metrics.bootstrap import DEFAULT_LEVEL
from lrformer.training.claim import first_difference
from lrformer.training.run_config import RunConfig, read_run_config


@dataclass(frozen=True, kw_only=True)
class SeedMetric:
    """One metric over seeds: mean, standard deviation, Student's t-interval of the mean, and every run's value."""

    dataset: str
    name: str
    score: str | None = None
    mean: float
    std: float | None
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @property
    def value(self) -> float:
        """Return the mean, under the name that a metric of one run has."""
        return self.mean


@dataclass(frozen=True, kw_only=True)
class SeedScores:
    """The metrics that every run has, over all runs; a metric that one run lacks is named in `left_out`."""

    num_seeds: int
    level: float
    sets: tuple[EvaluatedSet, ...]
    default_score: str
    metrics: tuple[SeedMetric, ...]
    left_out: tuple[str, ...]
    conventions: dict[str, str]

    def select(self, *, dataset: str, score: str | None = None) -> dict[str, SeedMetric]:
        """Return the metrics of one set by name: of one score, or those of the probabilities."""
        return {m.name: m for m in self.metrics if (m.dataset, m.score) == (dataset, score)}


def check_seeds_of_one(runs: Sequence[Path]) -> None:
    """Raise unless the runs differ in their seed, and in nothing else."""
    configs = {str(run): read_run_config(run) for run in runs}
    check_one_experiment(configs, way_out="evaluate each by itself")


def check_one_experiment(configs: Mapping[str, RunConfig], *, way_out: str) -> None:
    """Raise unless the runs, by the names of their folders, differ in their seed, and in nothing else."""
    if not configs:
        return
    first = next(iter(configs))
    name_of_seed: dict[int, str] = {}
    for run, config in configs.items():
        found = first_difference(configs[first], _levelled(config, configs[first]))
        if found is not None:
            name, here, there = found
            raise ConfigError(
                f"{run} is no seed of the experiment of {first}: {name} is {there!r} in {run} and {here!r} in {first}; {way_out}."
            )
        seed = config.train.seed
        if seed in name_of_seed:
            raise ConfigError(
                f"{run} has the seed of {name_of_seed[seed]} ({seed}); an interval over seeds needs runs of different ones. "
                f"{way_out[0].upper()}{way_out[1:]}."
            )
        name_of_seed[seed] = run


def _levelled(config: RunConfig, first: RunConfig) -> RunConfig:
    """Return `first` with the settings of `config`, but for its seed, and for what that and a place decide.

    Statistics and the conversion of a foreign model follow from the seed; data may lie elsewhere, but must be the same;
    each seed may start from its own run, of one model.
    """
    is_start_alike = (config.train.start is None) == (first.train.start is None)
    train = dataclasses.replace(
        config.train,
        seed=first.train.seed,
        data=first.train.data,
        start=first.train.start if is_start_alike else config.train.start,
    )
    backbone = dataclasses.replace(
        first.backbone, family=config.backbone.family, model=config.backbone.model
    )
    return dataclasses.replace(
        first,
        train=train,
        backbone=backbone,
        class_names=config.class_names,
        img_size=config.img_size,
        data_digest=config.data_digest,
    )


def over_seeds(runs: Sequence[Scores], *, level: float = DEFAULT_LEVEL) -> SeedScores:
    """Return mean and interval over runs that differ in their seed alone.

    Raises:
        ConfigError: when the runs were not evaluated on the same sets by the same conventions.
    """
    if not runs:
        raise ConfigError("runs is empty; give the scores of at least one run.")
    first = runs[0]
    for number, run in enumerate(runs[1:], 2):
        for what in ("sets", "config", "default_score"):
            if getattr(run, what) != getattr(first, what):
                raise ConfigError(
                    f"run {number} was evaluated with other {what} than run 1 "
                    f"({getattr(run, what)} and {getattr(first, what)}); evaluate all runs alike."
                )
    tables = [{_key(metric): metric.value for metric in run.metrics} for run in runs]
    every_key = dict.fromkeys(key for table in tables for key in table)
    metrics, left_out = [], []
    for key in every_key:
        if not all(key in table for table in tables):
            left_out.append("/".join(part for part in key if part))
            continue
        dataset, score, name = key
        values = tuple(table[key] for table in tables)
        over = seed_interval(values, level=level)
        metrics.append(
            SeedMetric(
                dataset=dataset,
                score=score,
                name=name,
                mean=over.mean,
                std=over.std,
                low=over.low,
                high=over.high,
                values=values,
            )
        )
    return SeedScores(
        num_seeds=len(runs),
        level=level,
        sets=first.sets,
        default_score=first.default_score,
        metrics=tuple(metrics),
        left_out=tuple(left_out),
        conventions=first.conventions,
    )


def _key(metric: Metric) -> tuple[str, str | None, str]:
    return metric.dataset, metric.score, metric.name
