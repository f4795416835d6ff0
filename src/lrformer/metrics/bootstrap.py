"""Intervals: by bootstrap over the samples of one run, and by Student's t over the seeds of several."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.metrics.calibration import DEFAULT_NUM_BINS
from lrformer.metrics.drawn_metrics import (
    PROBABILITIES,
    Draws,
    Measure,
    classification_measure,
    detection_measure,
    mean_measure,
    selective_measure,
)
from lrformer.metrics.inputs import Array
from lrformer.metrics.overconfidence import DEFAULT_THRESHOLD
from lrformer.metrics.resampling import draw_counts, whole_sample
from lrformer.metrics.selective import DEFAULT_COVERAGES

DEFAULT_NUM_DRAWS = 1000
DEFAULT_LEVEL = 0.95
# Counts are held for so many (draws x samples) at a time: 8 MiB, near to what a cache holds.
COUNTS_AT_A_TIME = 2**20


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the interval that holds it at the `level` of confidence."""

    value: float
    low: float
    high: float
    level: float
    num_draws: int


@dataclass(frozen=True, kw_only=True)
class SeedInterval:
    """The mean over seeds and its t-interval; with one seed the spread is unknown and None."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    level: float
    num_seeds: int


def bootstrap_classification(
    probs: Array,
    labels: Array,
    *,
    generator: torch.Generator,
    num_bins: int = DEFAULT_NUM_BINS,
    threshold: float = DEFAULT_THRESHOLD,
    num_draws: int = DEFAULT_NUM_DRAWS,
    level: float = DEFAULT_LEVEL,
) -> dict[str, Interval]:
    """Return the intervals of accuracy, also over classes, NLL, Brier, the calibration errors and overconfidence.

    A metric that the data leave undefined (confidence when wrong, where nothing is wrong) has no interval.
    """
    measure = classification_measure(probs, labels, num_bins=num_bins, threshold=threshold)
    return _by_score(_intervals(measure, generator, num_draws, level))[PROBABILITIES]


def bootstrap_means(
    values: Mapping[str, Array],
    *,
    generator: torch.Generator,
    num_draws: int = DEFAULT_NUM_DRAWS,
    level: float = DEFAULT_LEVEL,
) -> dict[str, Interval]:
    """Return the interval of the mean of each of `values`, one for each sample, which all see the same draws."""
    measure = mean_measure(values)
    if not values:
        return {}
    return _by_score(_intervals(measure, generator, num_draws, level))[PROBABILITIES]


def bootstrap_selective(
    uncertainty: Array,
    probs: Array,
    labels: Array,
    *,
    generator: torch.Generator,
    coverages: tuple[float, ...] = DEFAULT_COVERAGES,
    num_draws: int = DEFAULT_NUM_DRAWS,
    level: float = DEFAULT_LEVEL,
) -> dict[str, Interval]:
    """Return the intervals of AURC and of the accuracy at each coverage, for one uncertainty score."""
    alone = bootstrap_selective_scores(
        {"uncertainty": uncertainty},
        probs,
        labels,
        generator=generator,
        coverages=coverages,
        num_draws=num_draws,
        level=level,
    )
    return alone["uncertainty"]


def bootstrap_selective_scores(
    scores: Mapping[str, Array],
    probs: Array,
    labels: Array,
    *,
    generator: torch.Generator,
    coverages: tuple[float, ...] = DEFAULT_COVERAGES,
    num_draws: int = DEFAULT_NUM_DRAWS,
    level: float = DEFAULT_LEVEL,
) -> dict[str, dict[str, Interval]]:
    """Return the intervals of `bootstrap_selective` for several scores, which all see the same draws."""
    measure = selective_measure(scores, probs, labels, coverages=coverages)
    return _by_score(_intervals(measure, generator, num_draws, level), scores)


def bootstrap_detection(
    id_scores: Array,
    ood_scores: Array,
    *,
    generator: torch.Generator,
    num_draws: int = DEFAULT_NUM_DRAWS,
    level: float = DEFAULT_LEVEL,
) -> dict[str, Interval]:
    """Return the intervals of AUROC, AUPR and FPR at 95% TPR in both directions; both sets are resampled."""
    alone = bootstrap_detection_scores(
        {"scores": id_scores},
        {"scores": ood_scores},
        generator=generator,
        num_draws=num_draws,
        level=level,
    )
    return alone["scores"]


def bootstrap_detection_scores(
    id_scores: Mapping[str, Array],
    ood_scores: Mapping[str, Array],
    *,
    generator: torch.Generator,
    num_draws: int = DEFAULT_NUM_DRAWS,
    level: float = DEFAULT_LEVEL,
) -> dict[str, dict[str, Interval]]:
    """Return the intervals of `bootstrap_detection` for several scores, which all see the same draws."""
    measure = detection_measure(id_scores, ood_scores)
    if not id_scores:
        return {}
    return _by_score(_intervals(measure, generator, num_draws, level), id_scores)


def bootstrap_differences(
    ours: Measure,
    theirs: Measure,
    *,
    generator: torch.Generator,
    num_draws: int = DEFAULT_NUM_DRAWS,
    level: float = DEFAULT_LEVEL,
) -> dict[str, dict[str, Interval]]:
    """Return the difference, ours minus theirs, of every metric that both have, by score: a paired bootstrap.

    Both see the same draws, so that what is hard or easy for both in a draw does not widen the interval.

    Raises:
        ConfigError: when the two are not of sets of the same sizes.
    """
    if ours.sizes != theirs.sizes:
        raise ConfigError(
            f"the sets have {ours.sizes} and {theirs.sizes} samples; only figures on the same samples can be paired."
        )

    def measure(*counts: Tensor) -> Draws:
        left, right = ours.of(*counts), theirs.of(*counts)
        return {key: left[key] - right[key] for key in left if key in right}

    paired = Measure(sizes=ours.sizes, of=measure)
    return _by_score(_intervals(paired, generator, num_draws, level))


def seed_interval(values: Sequence[float], *, level: float = DEFAULT_LEVEL) -> SeedInterval:
    """Return the mean of one metric over the seeds of an experiment, with Student's t-interval."""
    from scipy.stats import t

    level = _as_level(level)
    if len(values) == 0 or not all(math.isfinite(value) for value in values):
        raise ConfigError(
            f"values ({list(values)}) must be finite, one for each seed, at least one."
        )
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return SeedInterval(mean=mean, std=None, low=None, high=None, level=level, num_seeds=1)
    freedom = len(values) - 1
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / freedom)
    half = float(t.ppf((1 + level) / 2, freedom)) * std / math.sqrt(len(values))
    return SeedInterval(
        mean=mean, std=std, low=mean - half, high=mean + half, level=level, num_seeds=len(values)
    )


def _intervals(
    measure: Measure,
    generator: torch.Generator,
    num_draws: int,
    level: float,
) -> dict[tuple[str, str], Interval]:
    """Return the percentile interval of everything that `measure` makes of the counts of each set."""
    level = _as_level(level)
    if num_draws < 1:
        raise ConfigError(f"num_draws ({num_draws}) must be at least 1; 1000 is usual.")
    estimates = {
        name: float(draw) for name, draw in measure.of(*map(whole_sample, measure.sizes)).items()
    }
    step = max(1, COUNTS_AT_A_TIME // sum(measure.sizes))
    parts: dict[tuple[str, str], list[Tensor]] = {name: [] for name in estimates}
    for start in range(0, num_draws, step):
        draws = min(step, num_draws - start)
        counts = [draw_counts(draws, size, generator=generator) for size in measure.sizes]
        for name, values in measure.of(*counts).items():
            parts[name].append(values)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    intervals = {}
    for name, value in estimates.items():
        if math.isnan(value):
            continue
        drawn = torch.cat(parts[name]).double()
        if drawn.isnan().all():
            continue  # defined on the whole set, and on none of the draws
        low, high = drawn.nanquantile(tails).tolist()
        intervals[name] = Interval(
            value=value, low=low, high=high, level=level, num_draws=num_draws
        )
    return intervals


def _by_score(
    intervals: Mapping[tuple[str, str], Interval], scores: Iterable[str] = ()
) -> dict[str, dict[str, Interval]]:
    """Return the intervals of each score under the names of the metrics; each of `scores` is there, be it empty."""
    found: dict[str, dict[str, Interval]] = {score: {} for score in scores}
    for (score, name), interval in intervals.items():
        found.setdefault(score, {})[name] = interval
    return found


def _as_level(level: float) -> float:
    """Return `level`, or raise if it is not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ConfigError(f"level ({level}) must lie strictly between 0 and 1; 0.95 is usual.")
    return level
