"""Two models over the same seeds: both, the difference, and the seeds on which ours is not ahead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lrformer.core import ConfigError
from lrformer.metrics import SeedInterval, seed_interval


@dataclass(frozen=True, kw_only=True)
class ComparedMetric:
    """One metric of a comparison, and which way is better."""

    name: str
    title: str
    is_higher_better: bool
    digits: int = 4


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One metric of both models; the difference is taken seed by seed, ours minus theirs.

    Attributes:
        seeds_not_ahead: where ours is worse, or exactly as good.
    """

    metric: ComparedMetric
    theirs: SeedInterval
    ours: SeedInterval
    difference: SeedInterval
    seeds_not_ahead: tuple[int, ...]


def compare(
    theirs: Mapping[int, Mapping[str, float]],
    ours: Mapping[int, Mapping[str, float]],
    metrics: Sequence[ComparedMetric],
) -> list[ComparisonRow]:
    """Return one row for each metric, from the figures of both models by seed."""
    if not theirs or list(theirs) != list(ours):
        raise ConfigError(
            f"both models must have the same seeds, at least one; got {list(theirs)} and {list(ours)}."
        )
    rows = []
    for metric in metrics:
        left, right = ([run[metric.name] for run in runs.values()] for runs in (theirs, ours))
        gains = [
            (b - a) if metric.is_higher_better else (a - b)
            for a, b in zip(left, right, strict=True)
        ]
        rows.append(
            ComparisonRow(
                metric=metric,
                theirs=seed_interval(left),
                ours=seed_interval(right),
                difference=seed_interval([b - a for a, b in zip(left, right, strict=True)]),
                seeds_not_ahead=tuple(
                    seed for seed, gain in zip(theirs, gains, strict=True) if gain <= 0
                ),
            )
        )
    return rows


def verdicts(rows: Sequence[ComparisonRow], *, ours: str) -> list[str]:
    """Return what the figures say, in sentences: where ours is ahead on every seed, and where it is not."""
    num_seeds = rows[0].ours.num_seeds
    ahead = [row.metric.title for row in rows if not row.seeds_not_ahead]
    said = []
    if ahead:
        said.append(f"{ours} is ahead on every seed ({num_seeds}) in: {', '.join(ahead)}.")
    for row in rows:
        if row.seeds_not_ahead:
            seeds = ", ".join(map(str, row.seeds_not_ahead))
            word = "seed" if len(row.seeds_not_ahead) == 1 else "seeds"
            said.append(f"{ours} is not ahead in {row.metric.title} on {word} {seeds}.")
    return said
