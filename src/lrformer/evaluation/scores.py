"""Every figure of one evaluation, flat: a set, a score, a metric, a value, an interval. Written to JSON and back."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrformer.core import ConfigError, from_record, to_record
from lrformer.core.registry import did_you_mean
from lrformer.evaluation.classes import ClassFigures
from lrformer.evaluation.conventions import EvaluationConfig
from lrformer.evaluation.text_table import text_table
from lrformer.methods import AbstentionRule
from lrformer.training.metrics_file import METRICS_FILE, read_metrics, update_metrics
from lrformer.training.seed_folders import seed_folders

SCHEMA = 1
SECTION = "evaluation"
# What `about` says of the test set: its name, and a note in brackets where the run has learned from it.
EVALUATED_ON = "evaluated on"
# The mean over several runs, which is no evaluation of one.
SEEDS_FILE = "seeds.json"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure with its bootstrap interval; a mean over several sets has none.

    Attributes:
        dataset: the set that was measured.
        name: of the metric.
        score: the uncertainty score that the metric ranks by; None for a metric of the probabilities.
    """

    dataset: str
    name: str
    score: str | None = None
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluatedSet:
    """What was measured on: `role` is `id`, `ood`, `made` (of test images, or noise), `corrupted`, or `mean` over the corrupted."""

    name: str
    role: str
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class Scores:
    """All figures of one evaluation, with the conventions that give them a meaning; `print` shows the first of them.

    Attributes:
        default_score: the score that a reader who wants one figure should look at.
        given_scores: every score that the model gave.
        config: the numbers that were chosen: bins, thresholds, draws.
        conventions: positive class, bins, thresholds, intervals, in words.
        about: what was run, for the reader.
        classes: how each class of the test set fares; nothing in evaluations from before it was kept.
        rule: the score and the threshold by which inputs are accepted; None where none belongs to these figures.
    """

    sets: tuple[EvaluatedSet, ...]
    metrics: tuple[Metric, ...]
    default_score: str
    given_scores: tuple[str, ...]
    num_classes: int
    config: EvaluationConfig
    conventions: dict[str, str]
    about: dict[str, Any] = field(default_factory=dict)
    classes: tuple[ClassFigures, ...] = ()
    rule: AbstentionRule | None = None
    schema: int = SCHEMA

    def of_role(self, role: str) -> list[EvaluatedSet]:
        """Return the sets that play one role."""
        return [entry for entry in self.sets if entry.role == role]

    @property
    def test_set(self) -> str:
        """Return the name of the in-distribution set."""
        return self.of_role("id")[0].name

    @property
    def test_note(self) -> str | None:
        """Return what the run has learned from the test set, in words; None where it is new to the run."""
        said = str(self.about.get(EVALUATED_ON, ""))
        before = f"{self.test_set} ("
        is_noted = said.startswith(before) and said.endswith(")")
        return said.removeprefix(before)[:-1] if is_noted else None

    @property
    def noted_test_set(self) -> str:
        """Return the name of the test set, with the note in brackets where there is one."""
        return self.test_set if self.test_note is None else f"{self.test_set} ({self.test_note})"

    def select(self, *, dataset: str, score: str | None = None) -> dict[str, Metric]:
        """Return the metrics of one set by name: of one score, or those of the probabilities."""
        return {m.name: m for m in self.metrics if (m.dataset, m.score) == (dataset, score)}

    def __call__(self, name: str, *, dataset: str | None = None, score: str | None = None) -> float:
        """Return one value, `scores("auroc", dataset="svhn")`.

        Without `dataset` it is that of the test set; without `score` that of the probabilities or, for a metric that
        ranks by a score, that of the default score.
        """
        dataset = dataset or self.test_set
        for wanted in (score,) if score else (None, self.default_score):
            found = self.select(dataset=dataset, score=wanted).get(name)
            if found is not None:
                return found.value
        known = dict.fromkeys(m.name for m in self.metrics if m.dataset == dataset)
        if not known:
            sets = [entry.name for entry in self.sets]
            raise ConfigError(
                f"no set '{dataset}' was evaluated.{did_you_mean(dataset, sets)} There are: "
                f"{', '.join(sets)}."
            )
        if score and score not in self.given_scores:
            raise ConfigError(
                f"the model gave no score '{score}'.{did_you_mean(score, self.given_scores)} There are: "
                f"{', '.join(self.given_scores)}."
            )
        if score and name in self.select(dataset=dataset):
            raise ConfigError(f"'{name}' ranks by no score; leave score ('{score}') out.")
        if score:
            known = self.select(dataset=dataset, score=score)
        raise ConfigError(
            f"'{name}' was not measured on {dataset}{f' by {score}' if score else ''}."
            f"{did_you_mean(name, known)} There are: {', '.join(known)}."
        )

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    def __str__(self) -> str:
        return text_table(self)


def save_scores(scores: Scores, folder: str | Path) -> None:
    """Put `scores` into the `metrics.json` of `folder`, beside what training wrote there."""
    update_metrics(Path(folder), SECTION, to_record(scores))


def is_evaluated(folder: str | Path) -> bool:
    """Return whether `folder` holds scores, which an evaluation writes last."""
    return SECTION in read_metrics(Path(folder))


def load_scores(folder: str | Path) -> Scores:
    """Return the scores that `save_scores` put into `folder`."""
    record = read_metrics(Path(folder)).get(SECTION)
    if record is None and (inside := seed_folders(Path(folder))):
        raise ConfigError(
            f"{folder} holds several seeds, and no evaluation of one. Each of them has its own, with its own report: name "
            f"one, such as {inside[0]}."
        )
    if record is None and (Path(folder) / SEEDS_FILE).is_file():
        raise ConfigError(
            f"{folder} holds {SEEDS_FILE}, the mean over several runs, and no evaluation of one. Each of the runs has its "
            "own report: run `lrformer report RUN` with the folder of one of them."
        )
    if not isinstance(record, dict):
        raise ConfigError(
            f"{folder} has not been evaluated: there is no {METRICS_FILE} with the section "
            f"'{SECTION}' in it. Run `lrformer evaluate {folder}` first."
        )
    if record.get("schema") != SCHEMA:
        raise ConfigError(
            f"{Path(folder) / METRICS_FILE} has schema {record.get('schema')} in '{SECTION}'; this version reads {SCHEMA}. "
            "Evaluate again."
        )
    try:
        return from_record(Scores, record)
    except (ConfigError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{Path(folder) / METRICS_FILE} is damaged in '{SECTION}' ({error}) Evaluate again."
        ) from error
