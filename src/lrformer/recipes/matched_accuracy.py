"""Calibration at equal accuracy: every run is read at the first epoch at which it is as accurate as the worst becomes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lrformer.metrics import SeedInterval, seed_interval
from lrformer.recipes.table_record import TableRun


@dataclass(frozen=True, kw_only=True)
class MatchedRow:
    """One row at the common accuracy, on the validation split, over its seeds."""

    row: str
    epoch: SeedInterval
    accuracy: SeedInterval
    ece: SeedInterval
    nll: SeedInterval


def match_accuracy(
    rows: Mapping[str, Sequence[TableRun]], *, accuracy: float | None = None
) -> tuple[float, list[MatchedRow]]:
    """Return the common accuracy and every row at it; without `accuracy` the highest whole percent that all reach.

    Rows without runs, and runs that do not reach it, are left out.
    """
    curves = {name: [run.curve for run in runs if run.curve] for name, runs in rows.items()}
    curves = {name: found for name, found in curves.items() if found}
    if not curves:
        return math.nan, []
    if accuracy is None:
        lowest = min(max(curve["accuracy"]) for found in curves.values() for curve in found)
        accuracy = math.floor(100 * lowest + 1e-9) / 100
    matched = []
    for name, found in curves.items():
        points = [point for curve in found if (point := _first(curve, accuracy)) is not None]
        if points:
            over = {key: seed_interval([point[key] for point in points]) for key in points[0]}
            matched.append(MatchedRow(row=name, **over))
    return accuracy, matched


def _first(curve: Mapping[str, Sequence[float]], accuracy: float) -> dict[str, float] | None:
    """Return the figures of the first epoch that is accurate enough, or None."""
    for index, value in enumerate(curve["accuracy"]):
        if value >= accuracy:
            return {key: float(values[index]) for key, values in curve.items()}
    return None
