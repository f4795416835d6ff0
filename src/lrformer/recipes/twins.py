"""Rows of a table that differ in what is done after training alone: one is trained, the others take its weights."""

import dataclasses
from pathlib import Path

from lrformer.core import ConfigError
from lrformer.recipes.sharing import is_in_hand
from lrformer.recipes.table import Table
from lrformer.recipes.table_run import PlannedRun, Trained, attempt_folders, first_folder
from lrformer.training.metrics_file import is_finished
from lrformer.training.refit import training_of
from lrformer.training.state import state_path


def find_trained(out: Path, table: Table, run: PlannedRun, folder: Path) -> Trained | None:
    """Return a finished run whose weights `run` can take, unless it has its own in `folder`."""
    if _has_weights(folder):
        return None
    return next(
        (
            Trained(row=twin.row, folder=attempt)
            for twin in _twins(out, table, run)
            for attempt in attempt_folders(twin.folder)
            if _is_usable(attempt)
        ),
        None,
    )


def find_in_training(out: Path, table: Table, run: PlannedRun, folder: Path) -> Trained | None:
    """Return a run that another process has in hand, and whose weights `run` can take when it is finished.

    Only rows further up are looked at, or two could wait for each other; and none if `run` has its own in `folder`.
    """
    if _has_weights(folder):
        return None
    names = [row.name for row in table.rows]
    above = names[: names.index(run.row.name)]
    return next(
        (
            twin
            for twin in _twins(out, table, run)
            if twin.row in above and is_in_hand(twin.folder) and not _is_usable(twin.folder)
        ),
        None,
    )


def _is_usable(folder: Path) -> bool:
    """Return whether a run is finished; one whose files cannot be read has nothing to give."""
    try:
        return is_finished(folder)
    except ConfigError:
        return False


def _has_weights(folder: Path) -> bool:
    """Return whether a run goes on from what is in `folder`; a log alone is nothing to go on from."""
    return is_finished(folder) or state_path(folder).is_file()


def _twins(out: Path, table: Table, run: PlannedRun) -> list[Trained]:
    """Return the runs of other rows, with the same seed, that are trained in the very same way."""
    twins = []
    for row in table.rows:
        config = dataclasses.replace(row.experiment.config, seed=run.config.seed)
        if row.name != run.row.name and training_of(config) == training_of(run.config):
            other = dataclasses.replace(run, row=row, config=config)
            twins.append(Trained(row=row.name, folder=first_folder(out, table, other)))
    return twins
