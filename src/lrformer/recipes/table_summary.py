"""From the runs of a record to the cells of a table: the paper's figure, ours over the seeds, and what they say."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lrformer.metrics import SeedInterval, seed_interval
from lrformer.recipes.table import CHOSEN_SCORE, Column, Printed, Table, TableRow, table_columns
from lrformer.recipes.table_record import PROBABILITIES, TableRecord, TableRun, without_place
from lrformer.training import TrainConfig
from lrformer.training.score_choice import choose_score

HOLDS, FAILS, OPEN = "holds", "does not hold", "not significant"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure of a row.

    Attributes:
        by_seed: the value of every run.
        bootstrap: interval over the samples of the test sets, where there is one run only.
        difference: ours minus the paper's, where both are for the same data.
        change: ours minus that of the table's baseline, seed by seed.
        claim: whether the paper's difference from its pivot row is there too; None where it prints none.
    """

    column: Column
    by_seed: dict[int, float]
    ours: SeedInterval | None
    bootstrap: tuple[float, float] | None
    printed: Printed | None
    difference: float | None
    change: SeedInterval | None
    claim: str | None

    def spread(self, digits: int) -> str:
        """Return the interval beside the mean: ` ± 0.012`, or from where to where if one side is over twice the other."""
        if self.ours is None:
            return ""
        low, high = self.bootstrap or (self.ours.low, self.ours.high)
        if low is None or high is None:
            return ""
        below, above = self.ours.mean - low, high - self.ours.mean
        if max(below, above) > 2 * min(below, above):
            return f" ({low:.{digits}f} to {high:.{digits}f})"
        return f" ± {(high - low) / 2:.{digits}f}"


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One row with all its cells; `score` is the one that was chosen on made outliers."""

    row: TableRow
    runs: tuple[TableRun, ...]
    score: str
    cells: tuple[Cell, ...]

    @property
    def num_seeds(self) -> int:
        """Return how many runs the row has."""
        return len(self.runs)

    def cell(self, name: str) -> Cell:
        """Return the cell of a column by its name."""
        return next(cell for cell in self.cells if cell.column.name == name)


def variants(record: TableRecord) -> list[dict[str, Any]]:
    """Return the settings under which runs were made, in the order of the record."""
    found = {json.dumps(run.variant, sort_keys=True): run.variant for run in record.runs}
    return list(found.values())


def runs_of(
    record: TableRecord, row: str, variant: dict[str, Any], config: TrainConfig | None = None
) -> tuple[TableRun, ...]:
    """Return the finished runs of a row, one a seed; of two recipes under one name those of the later one.

    Args:
        config: what is asked for; runs that were made of it are taken whatever their variant was called, as a plain row
            is the same under every alpha.

    A run that was evaluated on other unknown sets at other times has the figures of all of them, the later ones of a set
    that was asked for twice. One that was trained again, as elsewhere for those sets, has those of its later weights alone.
    """
    finished = [run for run in record.runs if run.row == row and run.is_finished]
    asked = None if config is None else _seedless(without_place(config))
    alike = [run for run in finished if _seedless(run.config) == asked]
    if not alike:
        found = [run for run in finished if run.variant == variant]
        last = _seedless(found[-1].config) if found else None
        alike = [run for run in found if _seedless(run.config) == last]
    by_seed: dict[int, TableRun] = {}
    for run in alike:
        before = by_seed.get(run.seed)
        is_same = before is not None and before.training.get("model") == run.training.get("model")
        by_seed[run.seed] = _joined(before, run) if before is not None and is_same else run
    return tuple(by_seed[seed] for seed in sorted(by_seed))


def _seedless(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, seed=0)


def _joined(before: TableRun, after: TableRun) -> TableRun:
    """Return one run with the figures of two evaluations of it."""
    figures = {
        kind: {**before.figures.get(kind, {}), **after.figures.get(kind, {})}
        for kind in {**before.figures, **after.figures}
    }
    ood = tuple(dict.fromkeys((*before.ood, *after.ood)))
    return dataclasses.replace(after, ood=ood, figures=figures)


def summarize(
    table: Table, record: TableRecord, *, variant: dict[str, Any] | None = None
) -> list[SummaryRow]:
    """Return every row of the table under one variant, its own by default."""
    is_own = variant is None or variant == table.variant
    wanted = table.variant if variant is None else variant
    by_row = {
        row.name: runs_of(record, row.name, wanted, row.experiment.config if is_own else None)
        for row in table.rows
    }
    ood = _unknown_sets([run for runs in by_row.values() for run in runs])
    columns = table_columns(ood, is_calibrated=table.is_calibrated)
    scores = {name: choose_score([r.outliers for r in runs]) for name, runs in by_row.items()}
    values = {
        (name, column.name): {
            run.seed: found[0]
            for run in runs
            if (found := figure(run, column, scores[name])) is not None and found[0] is not None
        }
        for name, runs in by_row.items()
        for column in columns
    }
    return [
        SummaryRow(
            row=row,
            runs=by_row[row.name],
            score=scores[row.name],
            cells=tuple(
                Cell(
                    column=column,
                    by_seed=values[row.name, column.name],
                    ours=_over_seeds(list(values[row.name, column.name].values())),
                    bootstrap=_bootstrap(by_row[row.name], column, scores[row.name]),
                    printed=row.printed.get(column.name),
                    difference=_difference(table, row, column, values[row.name, column.name]),
                    change=_paired(
                        values[table.baseline, column.name], values[row.name, column.name]
                    )
                    if row.name != table.baseline
                    else None,
                    claim=_claim(
                        table,
                        row,
                        column,
                        _paired(values[table.pivot, column.name], values[row.name, column.name]),
                    ),
                )
                for column in columns
            ),
        )
        for row in table.rows
    ]


def figure(run: TableRun, column: Column, chosen: str) -> list[float | None] | None:
    """Return value, low and high of one figure of a run, or None where it was not measured."""
    sets = run.figures["calibrated" if column.is_calibrated else "raw"]
    test = next(iter(sets))
    score = chosen if column.score == CHOSEN_SCORE else column.score
    by_score = sets.get(column.dataset or test, {})
    return by_score.get(score or PROBABILITIES, {}).get(column.metric)


def _unknown_sets(runs: Sequence[TableRun]) -> list[str]:
    """Return the sets beside the test set, which is the first, in the order of the runs."""
    found: dict[str, None] = {}
    for run in runs:
        for figures in run.figures.values():
            found |= dict.fromkeys(list(figures)[1:])
    return list(found)


def _over_seeds(values: list[float]) -> SeedInterval | None:
    return seed_interval(values) if values else None


def _bootstrap(runs: Sequence[TableRun], column: Column, chosen: str) -> tuple[float, float] | None:
    if len(runs) != 1:
        return None
    found = figure(runs[0], column, chosen)
    if found is None or found[1] is None or found[2] is None:
        return None
    return found[1], found[2]


def _difference(
    table: Table, row: TableRow, column: Column, values: dict[int, float]
) -> float | None:
    printed = row.printed.get(column.name)
    if printed is None or not values or table.printed_on != table.data:
        return None
    return seed_interval(list(values.values())).mean - printed.value


def _paired(theirs: dict[int, float], ours: dict[int, float]) -> SeedInterval | None:
    """Return ours minus theirs over the seeds that both have."""
    return _over_seeds([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


def _claim(table: Table, row: TableRow, column: Column, change: SeedInterval | None) -> str | None:
    """Return whether our difference from the pivot row has the sign of the printed one, and is no noise."""
    here = row.printed.get(column.name)
    there = table.row(table.pivot).printed.get(column.name)
    if here is None or there is None or change is None or here.value == there.value:
        return None
    if change.mean == 0:
        return OPEN
    is_same = (change.mean > 0) == (here.value > there.value)
    if change.low is None or change.high is None:
        return f"{HOLDS if is_same else FAILS} (one seed)"
    if change.low <= 0 <= change.high:
        return OPEN
    return HOLDS if is_same else FAILS
