"""Two methods side by side, from what their evaluations kept: every figure, the difference, and how sure it is."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.evaluation.comparison_figures import ComparedFigure, over_common_seeds, over_samples
from lrformer.evaluation.comparison_sides import (
    Place,
    Side,
    check_sides,
    common_seeds,
    read_side,
)
from lrformer.evaluation.comparison_text import comparison_text
from lrformer.metrics.bootstrap import DEFAULT_LEVEL, DEFAULT_NUM_DRAWS

SCHEMA = 1
OVER_SEEDS, OVER_SAMPLES = "student-t over seeds", "paired bootstrap over samples"


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    """One side of a comparison.

    Attributes:
        places: as they were named.
        runs: the folders of the evaluations that were read.
        seeds: of these; None for what is no run's.
        method: of the first; None for what is no run's.
        default_scores: of the thresholds, each once.
    """

    places: tuple[str, ...]
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]
    method: str | None
    default_scores: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the places in one line."""
        return ", ".join(self.places)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every figure of both sides with its difference, ours minus theirs; `print` shows them all.

    Attributes:
        interval: whether intervals are over seeds or over samples.
        seeds: those that both have, where intervals are over seeds.
        num_draws: of the bootstrap, where intervals are over samples.
        draw_seed: of its draws.
        left_out: figures that one of the two lacks, or that have no interval.
        notes: what else a reader has to know.
    """

    ours: ComparedSide
    theirs: ComparedSide
    test_set: str
    interval: str
    level: float
    seeds: tuple[int, ...] = ()
    num_draws: int | None = None
    draw_seed: int | None = None
    figures: tuple[ComparedFigure, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA

    def __call__(
        self, name: str, *, dataset: str | None = None, score: str | None = None
    ) -> ComparedFigure:
        """Return one figure, `comparison("auroc", dataset="svhn")`.

        Without `dataset` it is that of the test set; without `score` that of the probabilities, or by each side's own.
        """
        dataset = dataset or self.test_set
        here = [figure for figure in self.figures if figure.dataset == dataset]
        for figure in here:
            is_asked = figure.is_by_own_score or figure.score is None
            if score is not None:
                is_asked = figure.score == figure.their_score == score
            if figure.name == name and is_asked:
                return figure
        known = dict.fromkeys(figure.name for figure in here)
        by = f" by {score}" if score else ""
        raise ConfigError(
            f"'{name}' on {dataset}{by} was not compared.{did_you_mean(name, known)} There are: "
            f"{', '.join(known) or 'none'}; of the sets {', '.join(dict.fromkeys(f.dataset for f in self.figures))}."
        )

    def __iter__(self) -> Iterator[ComparedFigure]:
        return iter(self.figures)

    def __str__(self) -> str:
        return comparison_text(self)


def compare_runs(
    ours: Place | Sequence[Place],
    theirs: Place | Sequence[Place],
    *,
    level: float = DEFAULT_LEVEL,
    num_draws: int = DEFAULT_NUM_DRAWS,
    seed: int = 0,
) -> Comparison:
    """Return how two methods differ, from the figures and predictions that evaluations kept; no model is loaded.

    Args:
        ours: the folder of an evaluated run, of several seeds as `train --seeds` makes it, a list of such folders, or
            where `evaluate --out` put the figures.
        theirs: the same, of the other method.
        level: of the intervals.
        num_draws: of the bootstrap, where one run stands on each side.
        seed: of its draws.

    Raises:
        ConfigError: when a run was not evaluated, or not both on the same data with the same settings.
    """
    sides = read_side(ours), read_side(theirs)
    check_sides(*sides)
    seeds = common_seeds(*sides)
    first = sides[0].scores[0]
    # Raises for a level and a number of draws that make no interval.
    config = dataclasses.replace(first.config, level=level, num_draws=num_draws, seed=seed)
    if seeds:
        figures, left_out = over_common_seeds(*sides, seeds, level=level)
    else:
        figures, left_out = over_samples(*sides, config=config)
    return Comparison(
        ours=_compared(sides[0]),
        theirs=_compared(sides[1]),
        test_set=first.test_set,
        interval=OVER_SEEDS if seeds else OVER_SAMPLES,
        level=level,
        seeds=seeds,
        num_draws=None if seeds else num_draws,
        draw_seed=None if seeds else seed,
        figures=tuple(figures),
        left_out=tuple(left_out),
        notes=tuple(_notes(*sides, seeds)),
    )


def _compared(side: Side) -> ComparedSide:
    return ComparedSide(
        places=side.places,
        runs=tuple(map(str, side.folders)),
        seeds=side.seeds,
        method=side.scores[0].about.get("method"),
        default_scores=tuple(sorted({scores.default_score for scores in side.scores})),
    )


def _notes(ours: Side, theirs: Side, seeds: Sequence[int]) -> Iterator[str]:
    """Yield what makes a comparison less than it looks."""
    for side in (ours, theirs):
        if notes := dict.fromkeys(scores.test_note for scores in side.scores if scores.test_note):
            yield f"{side.scores[0].test_set} is not new to {side.name}: {'; '.join(notes)}."
        unpaired = [str(seed) for seed in side.seeds if seeds and seed not in seeds]
        if unpaired:
            word = "seed" if len(unpaired) == 1 else "seeds"
            yield f"{word.capitalize()} {', '.join(unpaired)} of {side.name} left out: the other side has none such."
    known = [_trained_on(side) for side in (ours, theirs)]
    if None not in known and known[0] != known[1]:
        yield "The two were trained on other data; the figures do not tell that from what the methods do."


def _trained_on(side: Side) -> object:
    """Return by what training data are known again; None where nothing is known of them."""
    config = side.scores[0].about.get("config")
    if not isinstance(config, dict):
        return None
    digest = config.get("data_digest")
    train = config.get("train", {})
    return digest or train.get("data"), config.get("class_names"), train.get("val_fraction")
