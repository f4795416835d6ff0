"""The figures of a comparison: which ones, and their differences over common seeds or over the same samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lrformer.core import ConfigError
from lrformer.evaluation.comparison_sides import KEPT, Side
from lrformer.evaluation.conventions import EvaluationConfig
from lrformer.evaluation.measure import accepted_by, generator_of, overconfident
from lrformer.evaluation.predictions import Predictions
from lrformer.evaluation.results import load_predictions
from lrformer.evaluation.scores import EvaluatedSet, Scores
from lrformer.evaluation.text_table import DETECTION, UNKNOWN_ROLES
from lrformer.evaluation.words import ACCEPTED, direction
from lrformer.metrics import Interval, seed_interval
from lrformer.metrics.bootstrap import PROBABILITIES, bootstrap_differences
from lrformer.metrics.drawn_metrics import (
    classification_measure,
    detection_measure,
    mean_measure,
    selective_measure,
)

KNOWN = (
    *("accuracy", "balanced_accuracy", "nll", "brier", "ece_equal_width"),
    "overconfidence_rate",
)
# Each side by the score of its own threshold. No score has this name.
OWN_SCORE = "own"
BETTER, WORSE, DIFFERS = "better", "worse", "differs"
# Differences of seeds that are equal differ by rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """One figure of both sides.

    Attributes:
        dataset: the set that was measured.
        score: by which our side ranks; None for a figure of the probabilities.
        their_score: by which the other side ranks.
        is_by_own_score: whether each side ranks by the score of its own threshold.
        ours: the value, over seeds the mean.
        difference: ours minus theirs.
        direction: 1 where more is better, -1 where less is, 0 where neither is.
        verdict: `better` or `worse`, of our side, where the interval excludes zero (`differs` where neither way is
            better); empty where it does not.
        differences: of every common seed, in their order.
    """

    dataset: str
    name: str
    score: str | None = None
    their_score: str | None = None
    is_by_own_score: bool = False
    ours: float
    theirs: float
    difference: float
    low: float
    high: float
    direction: int
    verdict: str
    differences: tuple[float, ...] = ()

    @property
    def has_spread(self) -> bool:
        """Return whether the differences of seeds differ; where they do not, their interval is a point and says nothing."""
        return not self.differences or self.high - self.low > ROUNDING


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A figure that is compared where both have it; `score` is a name, `OWN_SCORE`, or None."""

    entry: EvaluatedSet
    name: str
    score: str | None = None

    @property
    def direction(self) -> int:
        """Return 1, -1 or 0; to accept more is better of the known, and worse of the unknown."""
        if self.name == ACCEPTED:
            return {"id": 1, "ood": -1, "made": -1}.get(self.entry.role, 0)
        return direction(self.name)

    def find(self, scores: Scores) -> float | None:
        """Return the value in one evaluation."""
        # The test set of arrays may have another name on the other side.
        dataset = scores.test_set if self.entry.role == "id" else self.entry.name
        score = scores.default_score if self.score == OWN_SCORE else self.score
        metric = scores.select(dataset=dataset, score=score).get(self.name)
        return None if metric is None else metric.value

    def __str__(self) -> str:
        by = {None: "", OWN_SCORE: ""}.get(self.score, f" by {self.score}")
        return f"{self.name}{by} on {self.entry.name}"


def wanted_figures(ours: Sequence[Scores], theirs: Sequence[Scores]) -> Iterator[Wanted]:
    """Yield every figure to compare: by the scores of both thresholds, then by each score that all give."""
    every = [*ours, *theirs]
    common = [score for score in ours[0].given_scores if all(score in s.given_scores for s in every)]  # fmt: skip
    defaults = {scores.default_score for scores in every}
    if "energy" in common:
        # Of the same order: the one grows with the other.
        common = [score for score in common if score != "dempster_shafer"]
    # By their one default score all rank already.
    scores = [OWN_SCORE, *(score for score in common if {score} != defaults)]
    for entry in ours[0].sets:
        if entry.role == "corrupted":
            continue  # their mean stands for them
        is_unknown = entry.role in UNKNOWN_ROLES
        for name in ("overconfidence_rate",) if is_unknown else KNOWN:
            yield Wanted(entry=entry, name=name)
        for score in scores:
            for name in DETECTION if is_unknown else ("aurc",):
                yield Wanted(entry=entry, name=name, score=score)
            if score == OWN_SCORE:
                yield Wanted(entry=entry, name=ACCEPTED, score=score)


Found = tuple[list[ComparedFigure], list[str]]


def over_common_seeds(ours: Side, theirs: Side, seeds: Sequence[int], *, level: float) -> Found:
    """Return every figure with Student's t-interval of its differences seed by seed, and what one run lacks."""
    left, right = (
        [side.scores[side.seeds.index(seed)] for seed in seeds] for side in (ours, theirs)
    )
    figures, left_out = [], []
    for wanted in wanted_figures(left, right):
        here, there = ([wanted.find(s) for s in runs] for runs in (left, right))
        pairs = [(a, b) for a, b in zip(here, there, strict=True) if a is not None and b is not None]  # fmt: skip
        if len(pairs) < len(seeds):
            if any(value is not None for value in (*here, *there)):
                left_out.append(str(wanted))
            continue
        gains = [a - b for a, b in pairs]
        over = seed_interval(gains, level=level)
        assert over.std is not None
        assert over.low is not None
        assert over.high is not None
        figures.append(
            _figure(
                wanted,
                (left, right),
                values=(sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs)),
                interval=(over.mean, over.low, over.high),
                # Few seeds with the very same difference show no spread: that is chance, and no certainty.
                is_certain=over.std > ROUNDING,
                differences=tuple(gains),
            )
        )  # fmt: skip
    return figures, left_out


def over_samples(ours: Side, theirs: Side, *, config: EvaluationConfig) -> Found:
    """Return every figure with the interval of a paired bootstrap over the samples, and what has none."""
    (left,), (right,) = ours.scores, theirs.scores
    wanted = list(wanted_figures([left], [right]))
    shared = [w.score for w in wanted if w.score not in (None, OWN_SCORE)]
    intervals = _paired(ours, theirs, common=list(dict.fromkeys(map(str, shared))), config=config)
    figures, left_out = [], []
    for entry in wanted:
        here, there = entry.find(left), entry.find(right)
        found = intervals.get((entry.entry.name, entry.score or PROBABILITIES, entry.name))
        if here is None or there is None or found is None:
            if entry.entry.role in ("made", "mean"):
                left_out.append(f"{entry.entry.name} (of which no predictions are kept)")
            elif here is not None or there is not None:
                left_out.append(str(entry))
            continue
        figures.append(
            _figure(
                entry,
                ([left], [right]),
                values=(here, there),
                interval=(found.value, found.low, found.high),
            )
        )
    return figures, list(dict.fromkeys(left_out))


def _figure(
    wanted: Wanted,
    runs: tuple[Sequence[Scores], Sequence[Scores]],
    *,
    values: tuple[float, float],
    interval: tuple[float, float, float],
    is_certain: bool = True,
    differences: tuple[float, ...] = (),
) -> ComparedFigure:
    difference, low, high = interval
    is_own = wanted.score == OWN_SCORE
    # Chosen for each seed, they need not be one.
    own = ["/".join(sorted({run.default_score for run in side})) for side in runs]
    score, their_score = own if is_own else (wanted.score, wanted.score)
    sign = 0 if low <= 0 <= high or not is_certain else 1 if low > 0 else -1
    return ComparedFigure(
        dataset=wanted.entry.name,
        name=wanted.name,
        score=score,
        their_score=their_score,
        is_by_own_score=is_own,
        ours=values[0],
        theirs=values[1],
        difference=difference,
        low=low,
        high=high,
        direction=wanted.direction,
        verdict=_verdict(sign, wanted.direction),
        differences=differences,
    )


def _verdict(sign: int, better: int) -> str:
    """Return what a difference with this sign says of our side, where 0 is none that is sure."""
    if sign == 0:
        return ""
    if better == 0:
        return DIFFERS
    return BETTER if sign == better else WORSE


Intervals = dict[tuple[str, str, str], Interval]  # by set, score and metric


def _paired(ours: Side, theirs: Side, *, common: Sequence[str], config: EvaluationConfig) -> Intervals:  # fmt: skip
    """Return the difference of every figure that can be resampled: of sets whose predictions are kept."""
    sides = [_Kept(side, common=common) for side in (ours, theirs)]
    left, right = sides
    _check_same_labels(left, right)
    found: Intervals = {}

    def add(dataset: str, purpose: str, measures: list) -> None:
        drawn = bootstrap_differences(
            *measures,
            generator=generator_of(config, dataset, purpose),
            num_draws=config.num_draws,
            level=config.level,
        )
        for score, intervals in drawn.items():
            # What is found of one column of each side, be it by its own score, is filed under no score.
            for name, interval in intervals.items():
                by = OWN_SCORE if name == ACCEPTED else score
                found[dataset, by, name] = interval

    name = left.test.name
    settings = {"num_bins": config.num_bins, "threshold": config.threshold}
    add(name, "", [classification_measure(s.test.probs, s.labels, **settings) for s in sides])
    add(
        name,
        "selective",
        [selective_measure(s.ranked(s.test), s.test.probs, s.labels, coverages=()) for s in sides],
    )
    if all(s.rule is not None for s in sides):
        add(name, "accepted", [mean_measure(s.accepted(s.test)) for s in sides])
    for outside in left.ood:
        known = [s.ranked(s.test) for s in sides]
        unknown = [s.ranked(s.ood[outside]) for s in sides]
        add(outside, "detection", [*map(detection_measure, known, unknown)])
        rates = [
            {
                "overconfidence_rate": overconfident(
                    outside, s.ood[outside], threshold=config.threshold
                )
            }
            for s in sides
        ]
        add(outside, "means", [*map(mean_measure, rates)])
        if all(s.rule is not None for s in sides):
            add(outside, "accepted", [mean_measure(s.accepted(s.ood[outside])) for s in sides])
    return found


class _Kept:
    """The predictions of the one run of a side."""

    def __init__(self, side: Side, *, common: Sequence[str]) -> None:
        (self.folder,), (scores,) = side.folders, side.scores
        self.test, self.ood = load_predictions(self.folder, scores)
        self.rule = scores.rule
        self.common = common
        if self.test.labels is None:
            raise ConfigError(f"{self.folder}: its predictions have no labels; evaluate again.")
        self.labels = self.test.labels

    def ranked(self, predictions: Predictions) -> Mapping[str, np.ndarray]:
        """Return the side's own score, and those that both give."""
        return {
            OWN_SCORE: predictions.uncertainty(),
            **{score: predictions.uncertainty(score) for score in self.common},
        }

    def accepted(self, predictions: Predictions) -> dict[str, np.ndarray]:
        """Return which samples are accepted, each side by its own rule."""
        assert self.rule is not None
        return {ACCEPTED: accepted_by(self.rule, predictions)}


def _check_same_labels(left: _Kept, right: _Kept) -> None:
    """Raise unless sample by sample the truth is the same: what is paired must be the same image."""
    if not np.array_equal(left.labels, right.labels):
        raise ConfigError(
            f"{right.folder} was evaluated on other test data than {left.folder}: their labels differ, sample by sample. "
            f"Evaluate both on the same (`lrformer evaluate RUN --data PLACE`){KEPT}."
        )
