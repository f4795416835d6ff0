"""The record of a table: every run that was made, finished or failed. Without a run folder it is enough to go on."""

import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrformer._version import __version__
from lrformer.core import ConfigError, from_record, to_record
from lrformer.core.provenance import checkout_commit, source_digest
from lrformer.evaluation import Scores
from lrformer.recipes.circumstances import circumstances
from lrformer.recipes.sharing import sole_writer
from lrformer.training import TrainConfig
from lrformer.training.atomic_files import read_json, replace_file
from lrformer.training.claim import is_one_place

SCHEMA = 1
KIND = "table"
PROBABILITIES = "probabilities"
NUM_DIGITS = 6

# By set, then by score or `probabilities`, then by metric: value, low, high.
Figures = dict[str, dict[str, dict[str, list[float | None]]]]


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """One run of a row: what was trained, where, and what came of it.

    Attributes:
        variant: the settings that the rows share, in a few words.
        ood: the unknown sets as they were asked for.
        error: why the run failed; None where it is finished.
        figures: `raw`, and `calibrated` after the temperature of validation; unknown sets are in one of them.
        curve: accuracy, NLL and ECE on the validation split by epoch.
        outliers: how well each score found each kind of made outliers among validation images (AUPR).
        training: what training wrote of itself.
        data_digest: of the training data, where they lie in files; runs from before it was kept have none.
        seconds: of training, and of evaluation.
        made: versions, device, source and command.
    """

    row: str
    seed: int
    variant: dict[str, Any]
    config: TrainConfig
    ood: tuple[str, ...]
    error: str | None = None
    figures: dict[str, Figures] = field(default_factory=dict)
    curve: dict[str, list[float]] = field(default_factory=dict)
    outliers: dict[str, dict[str, float]] = field(default_factory=dict)
    decision: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    data_digest: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Return whether the run has figures."""
        return self.error is None

    def is_of(self, row: str, config: TrainConfig, ood: tuple[str, ...]) -> bool:
        """Return whether this is the run that is asked for, at least with these unknown sets; where data lie is no matter."""
        is_alike = (self.row, self.config) == (row, without_place(config))
        return is_alike and _places(ood) <= _places(self.ood)


@dataclass(frozen=True, kw_only=True)
class TableRecord:
    """All runs of one table, in the order in which they were made."""

    table: str
    data: str
    runs: tuple[TableRun, ...] = ()

    def add(self, run: TableRun) -> "TableRecord":
        """Return the record with one more run."""
        return dataclasses.replace(self, runs=(*self.runs, run))

    def find(self, row: str, config: TrainConfig, ood: tuple[str, ...]) -> list[TableRun]:
        """Return every attempt at one run, the finished one first."""
        found = [run for run in self.runs if run.is_of(row, config, ood)]
        return sorted(found, key=lambda run: not run.is_finished)


def _places(ood: tuple[str, ...]) -> set[str]:
    """Return the names of unknown sets without what does not change their meaning: `./big/` is `big`."""
    return {os.path.normpath(name) for name in ood}


def without_place(config: TrainConfig) -> TrainConfig:
    """Return the config without the folder of its data: a record holds no paths of a machine."""
    return dataclasses.replace(config, root=None)


def pack_scores(scores: Scores) -> Figures:
    """Return all figures of an evaluation with their intervals, by set, score and metric."""
    packed: Figures = {}
    for metric in scores:
        by_score = packed.setdefault(metric.dataset, {})
        by_score.setdefault(metric.score or PROBABILITIES, {})[metric.name] = [
            round(value, NUM_DIGITS) if value is not None and math.isfinite(value) else None
            for value in (metric.value, metric.low, metric.high)
        ]
    return packed


def read_table_record(path: Path, *, table: str, data: str) -> TableRecord:
    """Return the record at `path`, or an empty one where there is none yet.

    Raises:
        ConfigError: when the file is something else, or the record of another table.
    """
    if not path.exists():
        return TableRecord(table=table, data=data)
    content = read_json(path)
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind != KIND:
        raise ConfigError(
            f"{path} is not the record of a table (kind {kind!r}); choose another file."
        )
    schema = content.get("schema")
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        raise ConfigError(
            f"{path} has schema {schema!r}, and this lrformer ({__version__}) reads {SCHEMA}; "
            f"{'update lrformer' if newer else 'choose another file'}."
        )
    try:
        record = from_record(TableRecord, content.get("record"))
        for run in record.runs:
            _check_whole(run)
    except (ConfigError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is damaged, or was written by a newer version: {error} Restore it from a copy, update lrformer, or "
            "choose another file."
        ) from error
    if (record.table, record.data) != (table, data):
        raise ConfigError(
            f"{path} is the record of table '{record.table}' on {record.data}, not of '{table}' on {data}; choose another "
            "file, or name the same data as it does, from where they are seen so."
        )
    return record


def spelled_as_recorded(path: Path | None, data: str) -> str:
    """Return `data` as the record at `path` names it, where both names lead to one folder: runs are known by its name."""
    if path is None or not path.is_file():
        return data
    content = read_json(path)
    record = content.get("record") if isinstance(content, dict) else None
    name = record.get("data") if isinstance(record, dict) else None
    return name if isinstance(name, str) and is_one_place(name, data) else data


def _check_whole(run: TableRun) -> None:
    """Raise for a finished run that lacks what every table reads of it."""
    for name, value, wanted in (
        ("figures", run.figures, ("raw", "calibrated")),
        ("seconds", run.seconds, ("training", "evaluation")),
    ):
        if run.is_finished and not (isinstance(value, dict) and set(wanted) <= set(value)):
            raise ConfigError(
                f"the {name} of {run.row}, seed {run.seed}, lack {' or '.join(wanted)}."
            )


def write_table_record(path: Path, record: TableRecord) -> None:
    """Write the record in one step; a figure and its interval share a line."""
    content = {"kind": KIND, "schema": SCHEMA, "record": to_record(record)}
    text = json.dumps(content, indent=1, allow_nan=False)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    replace_file(path, f"{text}\n".encode())


def add_to_record(path: Path, run: TableRun, *, table: str, data: str) -> TableRecord:
    """Return the record at `path` after adding `run` to what stands there now; no other process is overwritten.

    Raises:
        ConfigError: when the file is something else, or the record of another table.
    """
    with sole_writer(path):
        record = read_table_record(path, table=table, data=data).add(run)
        write_table_record(path, record)
    return record


def made_by(device: str, command: str) -> dict[str, Any]:
    """Return where and by what a run was made: versions, device, state of the source, command."""
    return {
        **circumstances(),
        "device": device,
        **({"commit": commit} if (commit := checkout_commit()) else {}),
        "source": source_digest(),
        "command": command,
    }
