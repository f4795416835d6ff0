"""The one engine behind every table: the next missing run is made, evaluated and recorded, until all are there.

Several processes may do so at once: whoever has a run in hand keeps the others from it. Rows that differ in what is
done after training alone share the weights of the first one that is trained.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from lrformer.core import ConfigError, NotFiniteError
from lrformer.recipes.estimate import estimate_seconds, seconds_left
from lrformer.recipes.experiment import with_seed
from lrformer.recipes.sharing import is_in_hand, sole_writer, take_in_hand
from lrformer.recipes.table import Table
from lrformer.recipes.table_check import check_runs, check_unknown_sets
from lrformer.recipes.table_record import (
    TableRecord,
    TableRun,
    add_to_record,
    read_table_record,
)
from lrformer.recipes.table_run import (
    Circumstances,
    PlannedRun,
    Trained,
    failed_run,
    first_folder,
    make_run,
    run_folder,
)
from lrformer.recipes.time_limit import TimeLimit
from lrformer.recipes.twins import find_in_training, find_trained
from lrformer.training.atomic_files import RunFileError, check_writable
from lrformer.training.metrics_file import is_finished
from lrformer.training.processes import check_device
from lrformer.training.run_config import CONFIG_FILE
from lrformer.training.state import is_training_over

# After this nothing on the GPU works in the same process.
LOST_DEVICE = ("CUDA error", "device-side assert", "unspecified launch failure")
# One row may fail by itself; a fault of the program or of the machine meets every row.
NUM_SAME_ERRORS = 3

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one run stands: `finished`, `in hand` of a process, `failed`, `begun` or `missing`."""

    run: PlannedRun
    status: str
    attempts: tuple[TableRun, ...]


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What a call has brought.

    Attributes:
        record: as it is now; its file is `record_path`.
        standings: of every run that was asked for.
        stopped: why it stopped before the end.
        is_over: whether what stopped it would stop every other table as well.
        skipped: what is wrong with the folder of a run, by the name of the run.
    """

    table: Table
    record: TableRecord
    record_path: Path
    standings: tuple[Standing, ...]
    stopped: str | None = None
    is_over: bool = False
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def others(self) -> tuple[TableRun, ...]:
        """Return what the record holds of the same rows and seeds with other settings."""
        asked = {(s.run.row.name, s.run.config.seed) for s in self.standings}
        found = [run for standing in self.standings for run in standing.attempts]
        return tuple(
            run for run in self.record.runs if (run.row, run.seed) in asked and run not in found
        )


def plan_runs(
    table: Table, *, rows: Sequence[str] | None = None, num_seeds: int | None = None
) -> list[PlannedRun]:
    """Return the runs in their order: every row of a seed, then the next seed."""
    num_seeds = table.num_seeds if num_seeds is None else num_seeds
    if num_seeds < 1:
        raise ConfigError(f"seeds ({num_seeds}) must be at least 1.")
    chosen = table.rows if rows is None else tuple(table.row(name) for name in dict.fromkeys(rows))
    if not chosen:
        known = ", ".join(row.name for row in table.rows)
        raise ConfigError(f"rows is empty; give at least one of {known}, or leave it out for all.")
    return [
        PlannedRun(
            row=row,
            config=with_seed(row.experiment.config, seed),
            variant=table.variant,
            is_calibrated=table.is_calibrated,
        )
        for seed in range(num_seeds)
        for row in chosen
    ]


def look_up(
    table: Table,
    plan: Sequence[PlannedRun],
    record: TableRecord,
    out: Path | None,
    ood: tuple[str, ...],
) -> tuple[Standing, ...]:
    """Return where each run stands; nothing is run. Without `out` the record alone tells."""
    standings = []
    for run in plan:
        attempts = tuple(record.find(run.row.name, run.config, ood))
        folder = None if out is None else first_folder(out, table, run)
        standings.append(Standing(run=run, status=_status(attempts, folder), attempts=attempts))
    return tuple(standings)


def _status(attempts: tuple[TableRun, ...], folder: Path | None) -> str:
    if attempts and attempts[0].is_finished:
        return "finished"
    if folder is not None and is_in_hand(folder):
        return "in hand"
    if attempts:
        return "failed"
    return "begun" if folder is not None and (folder / CONFIG_FILE).is_file() else "missing"


def record_path_of(table: str, out: Path | None, record_path: Path | None) -> Path | None:
    """Return where the record of a table lies: by default with its runs."""
    return record_path or (None if out is None else out / f"{table}.json")


def reproduce_table(
    table: Table,
    out: Path | None,
    *,
    record_path: Path | None = None,
    rows: Sequence[str] | None = None,
    num_seeds: int | None = None,
    how: Circumstances | None = None,
    time_limit: float | TimeLimit | None = None,
    is_retrying: bool = False,
    is_listing: bool = False,
    say: Say = lambda _: None,
) -> Reproduction:
    """Return the table after making the runs that its record lacks, one after the other.

    Each run has a folder of its own under `out`, in which an interrupted one goes on; the record is written
    after every run. A run that is in the record is not made again, wherever it was made. A run that fails is
    recorded with its error, and the rest goes on; one whose folder holds something else, or damaged files, is
    skipped. Several processes may make the same call: they share the runs, and one that finds only runs in
    other hands returns.

    Args:
        out: None only for a listing of `record_path`.
        record_path: read first and written to; `out/TABLE.json` by default.
        rows: the names of some; None is all.
        time_limit: in seconds, or one that counts already. A run that would not fit is not started; one that no
            limit would do for is stopped when the time is over, and goes on at the next call.
        is_retrying: whether runs that are recorded as failed are tried again, in a folder of their own.
        is_listing: whether nothing is run.
        say: called with a line for each run.

    Raises:
        ConfigError: for settings that cannot work, before anything is trained.
        KeyboardInterrupt: after Ctrl-C; everything that was finished is recorded.
    """
    how = how or Circumstances()
    path = record_path_of(table.name, out, record_path)
    if path is None or (out is None and not is_listing):
        raise ConfigError(
            "out, the folder of the runs, is missing: give --out FOLDER, or --list with --record FILE."
        )
    plan = plan_runs(table, rows=rows, num_seeds=num_seeds)
    record = read_table_record(path, table=table.name, data=table.data)
    stopped, is_over, skipped = None, False, {}
    if out is not None and not is_listing:
        check_writable(path)
        with sole_writer(path):
            pass  # raises now where the lock cannot be taken, and not after a training
        # What was begun has been looked at, and may need nothing any more of what it began with.
        wanted = {"missing", "failed"} if is_retrying else {"missing"}
        standings = look_up(table, plan, record, out, how.ood)
        due = [standing.run for standing in standings if standing.status in wanted]
        if any(standing.status != "finished" for standing in standings):
            check_device(how.runtime.device)
            check_unknown_sets(plan[0].config, how.ood)
        check_runs(due, record, path)
        counting = isinstance(time_limit, TimeLimit)
        with nullcontext(time_limit) if counting else TimeLimit(time_limit) as limit:
            work = _Work(
                table=table,
                plan=plan,
                out=out,
                path=path,
                how=how,
                is_retrying=is_retrying,
                limit=limit,
                say=say,
                record=record,
            )
            try:
                stopped = work.make_missing()
            except KeyboardInterrupt:
                if not limit.is_over:
                    raise
                stopped = "the time is over; the run in hand goes on with the same command"
        is_over = limit.is_over or work.is_over
        record, skipped = work.read(), work.skipped
    return Reproduction(
        table=table,
        record=record,
        record_path=path,
        standings=look_up(table, plan, record, out, how.ood),
        stopped=stopped,
        is_over=is_over,
        skipped=skipped,
    )


@dataclass(kw_only=True, eq=False)
class _Work:
    """The runs of one call, beside other processes that may be making runs of the same table."""

    table: Table
    plan: list[PlannedRun]
    out: Path
    path: Path
    how: Circumstances
    is_retrying: bool
    limit: TimeLimit
    say: Say
    record: TableRecord

    def __post_init__(self) -> None:
        self.num_attempts = {run.name: len(self._attempts(run)) for run in self.plan}
        self.errors: list[str] = []
        self.is_over = False
        self.skipped: dict[str, str] = {}

    def make_missing(self) -> str | None:
        """Make what nobody else makes; return why it stopped before the end, or None.

        Runs in other hands are looked at again as long as there was something to do meanwhile.
        """
        left, has_made = self.plan, True
        while left and has_made:
            has_made, others = False, []
            for run in left:
                if not self._is_due(run):
                    continue
                first = first_folder(self.out, self.table, run)
                with self._skipping(run, first), take_in_hand(first) as is_ours:
                    other = None
                    if is_ours:
                        other = find_in_training(self.out, self.table, run, self._folder(run))
                    if not is_ours or other is not None:
                        whose = (
                            "" if other is None else f"waits for the weights of {other.row}, which "
                        )
                        self.say(
                            f"{self._title(run)} {whose}is in the hands of another process; skipped for now"
                        )
                        others.append(run)
                        continue
                    # Whoever had it in hand may have finished it.
                    self.record = self.read()
                    if not self._is_due(run):
                        continue
                    if (stopped := self._make(run)) is not None:
                        return stopped
                    has_made = True
            left = others
        if left:
            names = "; ".join(run.name for run in left)
            again = (
                ". Run the same command again when they are finished, for what takes their weights"
                if any(self._is_waiting(run) for run in left)
                else ""
            )
            return f"other processes have in hand what is left ({names}){again}"
        return None

    @contextmanager
    def _skipping(self, run: PlannedRun, folder: Path) -> Iterator[None]:
        """Go on behind the block where something is wrong with the folder of this run alone, as its error then names it."""
        try:
            yield
        except ConfigError as error:
            if re.search(rf"{re.escape(str(folder))}(?!\d)", str(error)) is None:
                raise
            self.skipped[run.name] = str(error)
            self.say(f"{self._title(run)} is skipped: {error}")

    def _is_waiting(self, run: PlannedRun) -> bool:
        """Return whether nobody has the run in hand itself, but the one whose weights it takes."""
        return not is_in_hand(first_folder(self.out, self.table, run))

    def read(self) -> TableRecord:
        """Return the record as it is now."""
        return read_table_record(self.path, table=self.table.name, data=self.table.data)

    def _make(self, run: PlannedRun) -> str | None:
        """Make one run and record it; return why the rest is not begun, or None."""
        folder = self._folder(run)
        trained = find_trained(self.out, self.table, run, folder)
        estimate = estimate_seconds(run, self.record, is_trained=trained is not None)
        if not self.limit.admits(seconds_left(estimate, folder)):
            return f"{run.name} would not fit into the time that is left"
        with_weights = "" if trained is None else f" with the weights of {trained.row}"
        self.say(f"{self._title(run)}{with_weights} ...")
        # A fit and an evaluation take what they take: cut off, they would have to begin again at every call.
        is_trained = trained is not None or is_finished(folder) or is_training_over(folder)
        with self.limit.suspended() if is_trained else nullcontext():
            try:
                entry = _attempt(run, folder, self.how, trained)
            except ConfigError as error:
                if trained is None:
                    raise
                # A folder of other settings, or a damaged one; this run can do without it.
                self.say(f"  not with the weights of {trained.row}: {error}")
                entry = _attempt(run, folder, self.how, None)
        self.record = add_to_record(self.path, entry, table=self.table.name, data=self.table.data)
        self.say(describe(entry))
        self.errors = [*self.errors, entry.error] if entry.error is not None else []
        stopped = _reason_to_stop(self.errors)
        self.is_over = stopped is not None
        return stopped

    def _is_due(self, run: PlannedRun) -> bool:
        """Return whether the run is to be made: also a failed one, unless it failed after this call began."""
        attempts = self._attempts(run)
        if not attempts:
            return True
        is_new = len(attempts) > self.num_attempts[run.name]
        return self.is_retrying and not attempts[0].is_finished and not is_new

    def _attempts(self, run: PlannedRun) -> list[TableRun]:
        return self.record.find(run.row.name, run.config, self.how.ood)

    def _folder(self, run: PlannedRun) -> Path:
        # However many unknown sets an attempt was to be measured on.
        attempts = self.record.find(run.row.name, run.config, ())
        num_failed = sum(not attempt.is_finished for attempt in attempts)
        return run_folder(self.out, self.table, run, num_failed=num_failed)

    def _title(self, run: PlannedRun) -> str:
        return f"[{self.plan.index(run) + 1}/{len(self.plan)}] {run.name}"


def describe(run: TableRun) -> str:
    """Return one line about a run that was made."""
    if run.error is not None:
        return f"  failed: {run.error}"
    test = next(iter(run.figures["raw"].values()))["probabilities"]
    trained = f"{run.seconds['training']:.0f} s training ({run.training['images_per_second']:,.0f} images/s)"
    if (source := run.training.get("weights_of")) is not None:
        trained = f"weights of {source}"
    return (
        f"  accuracy {test['accuracy'][0]:.2%}, nll {test['nll'][0]:.4f}, "
        f"ece {test['ece_equal_width'][0]:.4f}; {trained}, "
        f"{run.seconds['evaluation']:.0f} s evaluation"
    )


def _attempt(
    run: PlannedRun, folder: Path, how: Circumstances, trained: Trained | None
) -> TableRun:
    every = max(1, run.config.epochs // 30)
    runtime = dataclasses.replace(how.runtime, validate_every=every)
    try:
        return make_run(run, folder, dataclasses.replace(how, runtime=runtime), trained)
    except Exception as error:
        is_of_all = isinstance(error, ConfigError | RunFileError)
        if is_of_all and not isinstance(error, NotFiniteError):
            raise  # nothing was trained, or nothing can be kept: the next run would meet the same
        return failed_run(run, error, how, folder)


def _reason_to_stop(errors: list[str]) -> str | None:
    """Return why it makes no sense to go on after these errors in a row, or None."""
    if errors and any(text in errors[-1] for text in LOST_DEVICE):
        return "the GPU is lost to this process; run the same command again"
    last = errors[-NUM_SAME_ERRORS:]
    if len(last) == NUM_SAME_ERRORS and len(set(last)) == 1:
        return (
            f"{NUM_SAME_ERRORS} runs in a row failed alike ({last[0]}); mend it, then add --retry"
        )
    return None
