"""`lrformer predict`: what a run says about image files, and whether it knows them at all."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lrformer.evaluation import FilePrediction

EXIT_SOME_FAILED = 1
COLUMNS = ("file", "class", "probability", "uncertainty", "in_distribution", "error")
WIDEST_FILE, WIDEST_CLASS = 60, 24

Lines = Iterator[str]


def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES",
            help="Image files, folders or quoted globs; - reads file names from standard input.",
            show_default=False,
        ),
    ],
    output_format: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    batch_size: Annotated[int, typer.Option(help="Images predicted at once.")] = 64,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of methods that draw samples.")] = 0,
) -> None:
    """Classify image files; say how uncertain each answer is, and whether the image is of a known kind.

    Rows come as they are ready. A file that cannot be read is a row with its error; the exit code is then 1.

    Example: lrformer predict runs/birds photos/ 'more/*.jpg' --format csv > answers.csv
    """
    from rich.cells import cell_len

    from lrformer.core import ConfigError, choose_device
    from lrformer.core.registry import did_you_mean
    from lrformer.data.file_split import in_one_line
    from lrformer.evaluation import find_files, predict_files
    from lrformer.training import load_run

    if output_format not in WRITERS:
        raise ConfigError(
            f"unknown format '{output_format}'.{did_you_mean(output_format, WRITERS)} Known: "
            f"{', '.join(WRITERS)}."
        )
    names = [
        name
        for place in images
        for name in (_names(sys.stdin.read()) if place == "-" else [place])
        if name
    ]
    files = find_files(names)
    if not files:
        raise ConfigError("no image was named; give files, folders or globs.")
    loaded = load_run(run, device=choose_device(device))
    rows = predict_files(loaded, files, batch_size=batch_size, seed=seed)
    counted = Counted(rows)
    width = min(max(cell_len(in_one_line(path)) for path in files), WIDEST_FILE)
    _write_out(WRITERS[output_format](counted, width), counted)
    if counted.is_stopped:
        raise KeyboardInterrupt
    typer.echo(
        f"{counted.total} image{'' if counted.total == 1 else 's'}: {counted.known} in distribution, {counted.unknown} out of "
        f"distribution ({loaded.decision.score} above {loaded.decision.threshold:.4g}), "
        f"{counted.failed} failed.",
        err=True,
    )
    if counted.failed:
        raise typer.Exit(EXIT_SOME_FAILED)


class Counted:
    """Rows that are counted as they go by; Ctrl-C is their end, so that a writer can close what it began."""

    def __init__(self, rows: "Iterable[FilePrediction]") -> None:
        self.rows = rows
        self.total = self.known = self.unknown = self.failed = 0
        self.is_stopped = False

    def __iter__(self) -> "Iterator[FilePrediction]":
        rows = iter(self.rows)
        while not self.is_stopped:
            try:
                row = next(rows)
            except StopIteration:
                return
            except KeyboardInterrupt:
                self.is_stopped = True
                return
            self.total += 1
            self.failed += row.error is not None
            self.known += row.is_in_distribution is True
            self.unknown += row.is_in_distribution is False
            yield row


def _names(text: str) -> list[str]:
    """Return the lines of a list of files; some editors put a mark before the first."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _write_out(lines: Lines, counted: Counted) -> None:
    """Write each line as it comes; after Ctrl-C only what closes the output."""
    try:
        for line in lines:
            sys.stdout.write(line)
            sys.stdout.flush()
    except KeyboardInterrupt:
        counted.is_stopped = True
        sys.stdout.writelines(lines)
        sys.stdout.flush()


def _record(row: "FilePrediction") -> dict[str, object]:
    """Return the row under the names of its columns."""
    values = asdict(row)
    return dict(zip(COLUMNS, values.values(), strict=True))


def _write_json(rows: "Iterable[FilePrediction]", width: int) -> Lines:
    """Yield one JSON array, an element a line."""
    del width
    before = ""
    yield "["
    for row in rows:
        yield f"{before}\n{json.dumps(_record(row))}"
        before = ","
    yield "\n]\n"


def _write_csv(rows: "Iterable[FilePrediction]", width: int) -> Lines:
    del width
    line = _Line()
    writer = csv.writer(line, lineterminator="\n")
    writer.writerow(COLUMNS)
    yield line.text
    for row in rows:
        writer.writerow("" if value is None else value for value in _record(row).values())
        yield line.text


class _Line:
    """A file of one line, which is all that a csv writer needs."""

    text = ""

    def write(self, text: str) -> int:
        self.text = text
        return len(text)


def _write_table(rows: "Iterable[FilePrediction]", width: int) -> Lines:
    yield f"{'file':<{width}}  {'class':<{WIDEST_CLASS}}  {'prob':>6}  {'uncertainty':>11}  known\n"
    from lrformer.data.file_split import in_one_line

    is_cut = sys.stdout.isatty()
    for row in rows:
        file = _fit(in_one_line(row.file), width, is_cut=is_cut)
        if row.error is not None:
            yield f"{file}  error: {row.error}\n"
            continue
        label = _fit(row.label or "", WIDEST_CLASS, is_cut=is_cut)
        known = "yes" if row.is_in_distribution else "NO"
        yield (f"{file}  {label}  {row.probability:>6.3f}  {row.uncertainty:>11.4g}  {known}\n")


def _fit(text: str, width: int, *, is_cut: bool) -> str:
    """Return `text` over `width` columns of a screen; of what is longer the end is kept, and elsewhere all of it."""
    from rich.cells import cell_len

    if is_cut:
        while cell_len(text) > width:
            text = f"…{text.removeprefix('…')[1:]}"
    return text + " " * (width - cell_len(text))


WRITERS: "dict[str, Callable[[Iterable[FilePrediction], int], Lines]]" = {
    "table": _write_table,
    "json": _write_json,
    "csv": _write_csv,
}
