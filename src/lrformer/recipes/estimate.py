"""How long a run of a table may take, from those that are recorded."""

import json
from pathlib import Path
from statistics import fmean

from lrformer.recipes.table_record import TableRecord
from lrformer.recipes.table_run import PlannedRun
from lrformer.training.journal import read_log

# What a first estimate may be off by.
CAUTION = 1.1


def estimate_seconds(
    run: PlannedRun, record: TableRecord, *, is_trained: bool = False, is_mean: bool = False
) -> float | None:
    """Return how long a run may take, from those that are finished: its own row, else its variant, else any.

    Args:
        is_trained: whether only its evaluation is left to do.
        is_mean: whether as long as they took on average, and not a little longer than the longest.
    """
    known = [entry for entry in record.runs if entry.is_finished and entry.seconds]
    for alike in (
        [e for e in known if (e.row, _key(e.variant)) == (run.row.name, _key(run.variant))],
        [e for e in known if _key(e.variant) == _key(run.variant)],
        known,
    ):
        if alike:
            taken = [
                entry.seconds["evaluation"]
                + (not is_trained)
                * entry.seconds["training"]
                * run.config.epochs
                / entry.config.epochs
                for entry in alike
            ]
            return fmean(taken) if is_mean else CAUTION * max(taken)
    return None


def seconds_left(estimate: float | None, folder: Path) -> float | None:
    """Return what is left of an estimate for a run that was begun before."""
    if estimate is None:
        return None
    return max(0.0, estimate - sum(entry.get("seconds", 0.0) for entry in read_log(folder)))


def _key(variant: object) -> str:
    return json.dumps(variant, sort_keys=True)
