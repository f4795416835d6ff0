"""Intervals: by bootstrap over the samples of one run, and by Student's t over the seeds of several."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.metrics.calibration import (
    DEFAULT_NUM_BINS,
    ece_draws,
    ece_equal_mass_draws,
    gaps_of_confidence,
    gaps_of_every_class,
)
from lrformer.metrics.detection import (
    aupr_draws,
    auroc_draws,
    flagged_counts,
    fpr_draws,
    rank_both,
)
from lrformer.metrics.inputs import Array, as_num_bins, as_predictions, as_scores, as_share
from lrformer.metrics.overconfidence import DEFAULT_THRESHOLD, overconfidence_draws
from lrformer.metrics.resampling import draw_counts, rank, weighted_mean, whole_sample
from lrformer.metrics.scoring import (
    balanced_accuracy_draws,
    brier_losses,
    correctness,
    log_losses,
)
from lrformer.metrics.selective import (
    DEFAULT_COVERAGES,
    accepted_counts,
    accuracy_at_coverage_draws,
    aurc_draws,
)

DEFAULT_NUM_DRAWS = 1000
DEFAULT_LEVEL = 0.95
# Counts are held for so many (draws x samples) at a time: 8 MiB, near to what a cache holds.
COUNTS_AT_A_TIME = 2**20

# What a metric that ranks by no score is filed under.
PROBABILITIES = ""

Draws = dict[tuple[str, str], Float[Tensor, " draws"]]  # by score and metric


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
    checked, truth = as_predictions(probs, labels)
    bins, bound = as_num_bins(num_bins), as_share(threshold, name="threshold")
    correct = correctness(checked, truth)
    confidence = checked.amax(dim=1)
    means = {
        "accuracy": correct,
        "nll": log_losses(checked, truth),
        "brier": brier_losses(checked, truth),
    }
    # Once for all draws: to place them takes many times as long as to measure a block of draws.
    of_confidence = gaps_of_confidence(confidence, correct, num_bins=bins)
    of_every_class = gaps_of_every_class(checked, truth, num_bins=bins)

    def measure(drawn: Tensor) -> Draws:
        counts = drawn.double()
        wrong_figures = overconfidence_draws(counts, confidence, 1 - correct, threshold=bound)
        draws = {
            **{name: weighted_mean(counts, values) for name, values in means.items()},
            "balanced_accuracy": balanced_accuracy_draws(counts, correct, truth),
            "ece_equal_width": ece_draws(counts, of_confidence),
            "ece_equal_mass": ece_equal_mass_draws(counts, confidence, correct, num_bins=bins),
            "ece_class_wise": ece_draws(counts, of_every_class),
            **{f"overconfidence_{name}": draws for name, draws in wrong_figures.items()},
        }
        return {(PROBABILITIES, name): values for name, values in draws.items()}

    intervals = _intervals(measure, (len(truth),), generator, num_draws, level)
    return _by_score(intervals, [PROBABILITIES])[PROBABILITIES]


def bootstrap_means(
    values: Mapping[str, Array],
    *,
    generator: torch.Generator,
    num_draws: int = DEFAULT_NUM_DRAWS,
    level: float = DEFAULT_LEVEL,
) -> dict[str, Interval]:
    """Return the interval of the mean of each of `values`, one for each sample, which all see the same draws."""
    columns = {name: as_scores(column, name=name) for name, column in values.items()}
    sizes = {len(column) for column in columns.values()}
    if len(sizes) > 1:
        raise ConfigError(
            f"the values are of sets of different sizes ({sorted(sizes)}); give one value under each "
            "name for each sample."
        )
    if not sizes:
        return {}

    def measure(counts: Tensor) -> Draws:
        return {
            (PROBABILITIES, name): weighted_mean(counts, column) for name, column in columns.items()
        }

    intervals = _intervals(measure, (sizes.pop(),), generator, num_draws, level)
    return _by_score(intervals, [PROBABILITIES])[PROBABILITIES]


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
    checked, truth = as_predictions(probs, labels)
    rankings = {}
    for name, values in scores.items():
        uncertainty = as_scores(values, name=name)
        _check_same_length(uncertainty, truth, name=name)
        rankings[name] = rank(uncertainty)
    shares = tuple(as_share(coverage, name="coverage") for coverage in coverages)
    correct = correctness(checked, truth)

    def measure(counts: Tensor) -> Draws:
        draws: Draws = {}
        for name, ranking in rankings.items():
            accepted = accepted_counts(counts, ranking, correct)
            draws[name, "aurc"] = aurc_draws(accepted)
            accuracies = accuracy_at_coverage_draws(accepted, shares).unbind(dim=1)
            for share, accuracy in zip(shares, accuracies, strict=True):
                draws[name, f"accuracy_at_{share:g}"] = accuracy
        return draws

    return _by_score(_intervals(measure, (len(truth),), generator, num_draws, level), scores)


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
    if id_scores.keys() != ood_scores.keys():
        raise ConfigError(
            f"id_scores has the scores {', '.join(id_scores) or 'none'} and ood_scores {', '.join(ood_scores) or 'none'}; both "
            "need the same."
        )
    rankings, sizes = {}, set()
    for name in id_scores:
        inside = as_scores(id_scores[name], name=f"id_{name}")
        outside = as_scores(ood_scores[name], name=f"ood_{name}")
        rankings[name] = rank_both(inside, outside)
        sizes.add((len(inside), len(outside)))
    if len(sizes) > 1:
        raise ConfigError(
            f"the scores are of sets of different sizes ({sorted(sizes)}); give one value of each "
            "score for each sample."
        )
    if not sizes:
        return {}

    def measure(id_counts: Tensor, ood_counts: Tensor) -> Draws:
        draws: Draws = {}
        for name, ranking in rankings.items():
            flagged = flagged_counts(id_counts, ood_counts, ranking)
            draws[name, "auroc"] = auroc_draws(flagged)
            for positive in ("ood", "id"):
                draws[name, f"aupr_{positive}_positive"] = aupr_draws(flagged, positive=positive)
            for positive in ("ood", "id"):
                draws[name, f"fpr95_{positive}_positive"] = fpr_draws(
                    flagged, tpr=0.95, positive=positive
                )
        return draws

    return _by_score(_intervals(measure, sizes.pop(), generator, num_draws, level), id_scores)


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
    measure: Callable[..., Draws],
    sizes: tuple[int, ...],
    generator: torch.Generator,
    num_draws: int,
    level: float,
) -> dict[tuple[str, str], Interval]:
    """Return the percentile interval of everything that `measure` makes of the counts of each set."""
    level = _as_level(level)
    if num_draws < 1:
        raise ConfigError(f"num_draws ({num_draws}) must be at least 1; 1000 is usual.")
    estimates = {name: float(draw) for name, draw in measure(*map(whole_sample, sizes)).items()}
    step = max(1, COUNTS_AT_A_TIME // sum(sizes))
    parts: dict[tuple[str, str], list[Tensor]] = {name: [] for name in estimates}
    for start in range(0, num_draws, step):
        draws = min(step, num_draws - start)
        counts = [draw_counts(draws, size, generator=generator) for size in sizes]
        for name, values in measure(*counts).items():
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
    intervals: Mapping[tuple[str, str], Interval], scores: Iterable[str]
) -> dict[str, dict[str, Interval]]:
    """Return the intervals of each score under the names of the metrics."""
    return {
        score: {name: interval for (of, name), interval in intervals.items() if of == score}
        for score in scores
    }


def _as_level(level: float) -> float:
    """Return `level`, or raise if it is not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ConfigError(f"level ({level}) must lie strictly between 0 and 1; 0.95 is usual.")
    return level


def _check_same_length(values: Tensor, labels: Tensor, *, name: str) -> None:
    """Raise if there is not one row of `values` for each label."""
    if len(values) != len(labels):
        raise ConfigError(
            f"{name} has {len(values)} samples but there are {len(labels)} labels; give one for each."
        )
