"""All tables one after the other: the next missing run of each part of the plan, within one limit of time."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrformer.core import ConfigError
from lrformer.recipes.estimate import estimate_seconds
from lrformer.recipes.settings import command_of
from lrformer.recipes.table import Table
from lrformer.recipes.table_engine import (
    Reproduction,
    Say,
    Standing,
    record_path_of,
    reproduce_table,
)
from lrformer.recipes.table_record import spelled_as_recorded
from lrformer.recipes.table_run import Circumstances
from lrformer.recipes.time_limit import TimeLimit
from lrformer.recipes.whole_plan import Part, whole_plan


@dataclass(frozen=True, kw_only=True)
class PartStanding:
    """Where one part of the plan stands.

    Attributes:
        command: that makes this part alone, without the folders.
        skipped: what is wrong with the folder of a run, by the name of the run.
    """

    part: Part
    command: str
    result: Reproduction
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def left(self) -> tuple[Standing, ...]:
        """Return the runs that are not finished."""
        return tuple(s for s in self.result.standings if s.status != "finished")

    @property
    def num_finished(self) -> int:
        """Return how many runs are finished."""
        return len(self.result.standings) - len(self.left)

    @property
    def seconds(self) -> float | None:
        """Return how long what is left may take, as runs in the record did; None where it has none to judge by."""
        known = [
            estimate_seconds(standing.run, self.result.record, is_mean=True)
            for standing in self.left
        ]
        found = [seconds for seconds in known if seconds is not None]
        return sum(found) if len(found) == len(known) else None

    @property
    def left_in_words(self) -> str:
        """Return the rows of the runs that are left, with how many of each."""
        counts = Counter(standing.run.row.name for standing in self.left)
        if len(self.left) == len(self.result.standings):
            return "all"
        if len(set(counts.values())) == 1 and len(counts) * self.part.num_seeds == len(
            self.result.standings
        ):
            return f"every row ({len(self.left) // len(counts)})"
        return ", ".join(f"{row} ({number})" for row, number in counts.items())

    @property
    def time_in_words(self) -> str:
        """Return how long what is left may take; nothing where all is finished."""
        if not self.left:
            return ""
        if self.seconds is None:
            return "not known"
        minutes = self.seconds / 60
        return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


@dataclass(frozen=True, kw_only=True)
class Whole:
    """All parts of the plan, and why runs of some are left."""

    standings: tuple[PartStanding, ...]
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the runs of all tables and their records lie.

    Attributes:
        out: folder of the runs; None only for a listing.
        records: folder of the records, named by data and table; None is `out`, where each has the name of its table.
        root: where prepared data lie.
    """

    data: str
    out: Path | None
    records: Path | None = None
    root: Path | None = None

    def record_path(self, table: str) -> Path:
        """Return where the record of a table lies."""
        if self.records is not None:
            return self.records / f"{Path(self.data).name}-{table}.json"
        if (path := record_path_of(table, self.out, None)) is None:
            raise ConfigError(
                "out, the folder of the runs, is missing: give --out FOLDER, or --list with --records FOLDER."
            )
        return path

    def make(self, part: Part) -> Table:
        """Return the table of a part, with the data as its record names them."""
        data = spelled_as_recorded(self.record_path(part.table), self.data)
        settings = dataclasses.replace(part.settings, root=self.root)
        return dataclasses.replace(part, settings=settings).make(data)


def reproduce_all(
    place: Place,
    *,
    parts: Sequence[Part] | None = None,
    how: Circumstances | None = None,
    time_limit: float | None = None,
    is_retrying: bool = False,
    is_listing: bool = False,
    say: Say = lambda _: None,
) -> Whole:
    """Return where every part stands after making the runs that the records lack, part by part.

    Each part is made as `reproduce_table` makes a table, and all share the limit: where a run of one part would not
    fit into the time that is left, the next part is looked at.

    Args:
        parts: the whole plan by default.
        time_limit: in seconds, for all.
        is_listing: whether nothing is run.

    Raises:
        ConfigError: for settings that cannot work, before anything of their part is trained.
        KeyboardInterrupt: after Ctrl-C; everything that was finished is recorded.
    """
    parts = tuple(whole_plan() if parts is None else parts)
    how = how or Circumstances()
    # Every record is read before the first training.
    begun = [_reproduce(place, part, how, is_listing=True) for part in parts]
    if is_listing:
        return Whole(standings=tuple(begun))
    stops: list[str] = []
    skipped = [standing.skipped for standing in begun]
    with TimeLimit(time_limit) as limit:
        try:
            for index, standing in enumerate(begun):
                if not standing.left:
                    continue
                part = standing.part
                say(f"{index + 1}/{len(parts)} {part.title(place.data)}")
                made = _reproduce(
                    place, part, how, time_limit=limit, is_retrying=is_retrying, say=say
                )
                skipped[index] = made.skipped
                if made.result.stopped is not None:
                    stops.append(f"{part.table}: {made.result.stopped}")
                if made.result.is_over:
                    break
        except KeyboardInterrupt:
            if not limit.is_over:
                raise
            stops.append("the time is over")
    ended = [_reproduce(place, part, how, is_listing=True) for part in parts]
    return Whole(
        standings=tuple(
            dataclasses.replace(standing, skipped=found)
            for standing, found in zip(ended, skipped, strict=True)
        ),
        stops=tuple(stops),
    )


def _reproduce(place: Place, part: Part, how: Circumstances, **options: Any) -> PartStanding:
    table = place.make(part)
    command = command_of(
        table,
        num_seeds=part.num_seeds,
        rows=part.rows,
        ood=how.ood,
        draws=how.evaluation.num_draws,
    )
    result = reproduce_table(
        table,
        place.out,
        record_path=place.record_path(part.table),
        rows=part.rows,
        num_seeds=part.num_seeds,
        how=dataclasses.replace(how, command=command),
        **options,
    )
    return PartStanding(part=part, command=command, result=result, skipped=result.skipped)
