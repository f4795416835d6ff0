"""A table of the paper as a value: its rows, what is printed beside them, and what is measured."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lrformer.core import ConfigError, Registry
from lrformer.core.registry import did_you_mean
from lrformer.evaluation.words import direction
from lrformer.recipes.experiment import Experiment
from lrformer.training import TrainConfig

PAPER_SCORE = "entropy"
CHOSEN_SCORE = "chosen"
SET_TITLES = {"svhn": "SVHN", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A figure as it is printed, with what stands after its plus-minus sign."""

    value: float
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """What is measured, and how a record names it.

    Attributes:
        name: under which printed figures are kept: `accuracy`, `aupr:svhn`.
        metric: its name in an evaluation.
        dataset: the unknown set; None is the test set.
        score: that ranks unknown inputs; `chosen` is the one that found made outliers best.
        is_calibrated: whether the temperature that was fitted on validation is applied.
    """

    name: str
    title: str
    metric: str
    dataset: str | None = None
    score: str | None = None
    is_calibrated: bool = False

    @property
    def direction(self) -> int:
        """Return 1 where more is better and -1 where less is."""
        return direction(self.metric)


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row: what is trained for it, and what the source prints in it, by the name of the column."""

    name: str
    title: str
    experiment: Experiment
    printed: dict[str, Printed] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A whole table.

    Attributes:
        name: of the command that makes it.
        place: where the figures are printed.
        printed_on: the data that they are printed for; figures for other data are shown, not subtracted.
        baseline: the row of the plain transformer: the same recipe, budget and seeds.
        pivot: the row against which the source reads its own differences.
        num_seeds: how many runs make a row, unless told otherwise: three, or one where a run takes minutes.
        variant: what was chosen of the settings that the rows share, in a few words for a reader.
        depth: of the recipe's model, where the heading names it.
        is_calibrated: whether its figures are read after the temperature; the paper has none.
    """

    name: str
    title: str
    data: str
    rows: tuple[TableRow, ...]
    place: str
    printed_on: str
    baseline: str
    pivot: str
    num_seeds: int = 3
    variant: dict[str, Any] = field(default_factory=dict)
    depth: int | None = None
    is_calibrated: bool = False

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if len(set(names)) != len(names):
            raise ConfigError(f"rows ({', '.join(names)}) must have different names.")
        for what in (self.baseline, self.pivot):
            self.row(what)

    @property
    def heading(self) -> str:
        """Return the title with the depth of the model; the variant says another depth."""
        is_own = self.depth is not None and "depth" not in self.variant.get("model", {})
        return f"{self.title}, depth {self.depth}" if is_own else self.title

    def row(self, name: str) -> TableRow:
        """Return a row by its name."""
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        raise ConfigError(
            f"table '{self.name}' has no row '{name}'.{did_you_mean(name, names)} "
            f"Known: {', '.join(names)}."
        )

    def changed(
        self, change: Callable[[TrainConfig], TrainConfig], variant: dict[str, Any]
    ) -> "Table":
        """Return the table with every config changed alike, the baseline's too."""
        rows = tuple(
            dataclasses.replace(
                row,
                experiment=dataclasses.replace(
                    row.experiment, config=change(row.experiment.config)
                ),
            )
            for row in self.rows
        )
        return dataclasses.replace(self, rows=rows, variant={**self.variant, **variant})


def table_columns(ood: Sequence[str], *, is_calibrated: bool = False) -> tuple[Column, ...]:
    """Return what is measured in every table: the test set, then each unknown set by two scores."""
    test = [
        Column(name="accuracy", title="accuracy", metric="accuracy", is_calibrated=is_calibrated),
        Column(name="nll", title="NLL", metric="nll", is_calibrated=is_calibrated),
        Column(name="ece", title="ECE", metric="ece_equal_width", is_calibrated=is_calibrated),
    ]
    if is_calibrated:
        # Most answers of a good model lie in the last bin of equal width, where they can hide what bins of equal mass show.
        test.append(
            Column(
                name="ece_mass",
                title="ECE, equal mass",
                metric="ece_equal_mass",
                is_calibrated=True,
            )
        )
    else:
        test += [
            Column(name="nll_t", title="NLL with temperature", metric="nll", is_calibrated=True),
            Column(
                name="ece_t",
                title="ECE with temperature",
                metric="ece_equal_width",
                is_calibrated=True,
            ),
        ]
    unknown = [
        Column(
            name=f"{short}:{dataset}" if score == PAPER_SCORE else f"{short}:{dataset}:{score}",
            title=f"{short.upper()} {SET_TITLES.get(dataset, dataset)}"
            + ("" if score == PAPER_SCORE else " by chosen score"),
            metric=metric,
            dataset=dataset,
            score=score,
            is_calibrated=is_calibrated,
        )
        for dataset in ood
        for score, short, metric in (
            (PAPER_SCORE, "auroc", "auroc"),
            (PAPER_SCORE, "aupr", "aupr_ood_positive"),
            (CHOSEN_SCORE, "aupr", "aupr_ood_positive"),
        )
    ]
    return (*test, *unknown)


def describe_variant(variant: dict[str, Any]) -> str:
    """Return the settings that the rows of a table share, for a reader."""
    rest = dict(variant)
    words = []
    if (optimizer := rest.pop("optimizer", None)) is not None:
        words.append(f"optimizer `{optimizer}`")
    if (pixels := rest.pop("pixels", None)) is not None:
        words.append(f"{pixels} pixels")
    epochs, whole = rest.pop("epochs", None), rest.pop("shortened_from", None)
    if epochs is not None:
        words.append(
            f"{epochs} epoch{'' if epochs == 1 else 's'}"
            if whole is None
            else f"shortened to {epochs} of {whole} epochs"
        )
    for key, value in rest.items():
        if value is True:
            words.append(key)
            continue
        options = value.items() if isinstance(value, dict) else ()
        shown = f"{value:g}" if isinstance(value, float) else value
        words.append(f"{key} {' '.join(f'{k}={v}' for k, v in options) or shown}")
    return ", ".join(words)


def variant_slug(variant: dict[str, Any]) -> str:
    """Return a name for a folder of runs of one variant."""
    parts = []
    for key, value in variant.items():
        if isinstance(value, dict):
            parts.append(variant_slug(value))
        elif key != "shortened_from":
            parts.append(value if key == "optimizer" else f"{key}-{value}")
    text = "-".join(map(str, parts)) or "default"
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in text)


TABLES: Registry[Callable[..., Table]] = Registry("table")
