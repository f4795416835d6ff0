"""`lrformer predict`: what a run says about image files, and whether it knows them at all."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lrformer.evaluation import FilePrediction

EXIT_SOME_FAILED = 1
COLUMNS = ("file", "class", "probability", "uncertainty", "in_distribution", "error")
WIDEST_FILE, WIDEST_CLASS = 60, 24
# More names without an image are counted, and not all of them named.
MOST_NAMED = 3

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
    top: Annotated[int, typer.Option(help="How many of the most probable classes are given.")] = 1,
    all_scores: Annotated[
        bool, typer.Option("--all-scores", help="Give every score of uncertainty that the run has.")
    ] = False,
) -> None:
    """Classify image files; say how uncertain each answer is, and whether the image is of a known kind.

    Rows come as they are ready. A file that cannot be read is a row with its error, and so is a name without an image
    (an empty folder, a file that is not there); the exit code is then 1.

    Example: lrformer predict runs/birds photos/ 'more/*.jpg' --format csv > answers.csv
    """
    from rich.cells import cell_len

    from lrformer.core import ConfigError, choose_device
    from lrformer.core.registry import did_you_mean
    from lrformer.data.file_split import in_one_line
    from lrformer.evaluation import find_files, predict_files
    from lrformer.evaluation.files import given_scores
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
    rows = predict_files(
        loaded, files, batch_size=batch_size, seed=seed, top=top, has_all_scores=all_scores
    )
    counted = Counted(rows)
    width = min(max(cell_len(in_one_line(path)) for path in files), WIDEST_FILE)
    more = More(top=top, scores=given_scores(loaded) if all_scores else ())
    _write_out(WRITERS[output_format](counted, width, more), counted)
    if counted.is_stopped:
        raise KeyboardInterrupt
    typer.echo(
        f"{counted.total} image{'' if counted.total == 1 else 's'}: {counted.known} in distribution, {counted.unknown} out of "
        f"distribution ({loaded.decision.score} above {loaded.decision.threshold:.4g}), "
        f"{counted.failed} failed.{_without_image(counted)}",
        err=True,
    )
    if counted.failed or counted.without_image:
        raise typer.Exit(EXIT_SOME_FAILED)


@dataclass(frozen=True, kw_only=True)
class More:
    """What is written of an image beside the columns that are always there.

    Attributes:
        top: how many of the most probable classes.
        scores: the names of further scores.
    """

    top: int = 1
    scores: tuple[str, ...] = ()


class Counted:
    """Rows that are counted as they go by; Ctrl-C is their end, so that a writer can close what it began.

    A name that stands for no image is no image that failed: it is counted by itself.
    """

    def __init__(self, rows: "Iterable[FilePrediction]") -> None:
        self.rows = rows
        self.total = self.known = self.unknown = self.failed = self.without_image = 0
        self.first_without_image: list[FilePrediction] = []
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
            if not row.is_image:
                self.without_image += 1
                if self.without_image <= MOST_NAMED:
                    self.first_without_image.append(row)
                yield row
                continue
            self.total += 1
            self.failed += row.error is not None
            self.known += row.is_in_distribution is True
            self.unknown += row.is_in_distribution is False
            yield row


def _without_image(counted: Counted) -> str:
    """Return the end of the last line: which names stand for no image, and why; nothing where all do."""
    if not counted.without_image:
        return ""
    from lrformer.data.file_split import in_one_line

    said = [
        f"{in_one_line(row.file)} ({(row.error or '').rstrip('.')})"
        for row in counted.first_without_image
    ]
    if more := counted.without_image - len(said):
        said.append(f"and {more:,} more")
    verb = "name stands" if counted.without_image == 1 else "names stand"
    return f" {counted.without_image:,} {verb} for no image: {', '.join(said)}."


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
    """Return the row under the names of the columns that are always there."""
    values = (row.file, row.label, row.probability, row.uncertainty, row.is_in_distribution, row.error)  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _write_json(rows: "Iterable[FilePrediction]", width: int, more: More) -> Lines:
    """Yield one JSON array, an element a line; a file that could not be read has an empty list and no scores."""
    del width
    before = ""
    yield "["
    for row in rows:
        record = _record(row)
        if more.top > 1:
            record["top"] = [{"class": label, "probability": p} for label, p in row.top]
        if more.scores:
            record["scores"] = dict(row.scores)
        yield f"{before}\n{json.dumps(record)}"
        before = ","
    yield "\n]\n"


def _write_csv(rows: "Iterable[FilePrediction]", width: int, more: More) -> Lines:
    """Yield a line of names and one for each file; what was asked for further stands behind what is always there."""
    del width
    others = range(2, more.top + 1)
    columns = [f"{name}_{place}" for place in others for name in ("class", "probability")]
    line = _Line()
    writer = csv.writer(line, lineterminator="\n")
    writer.writerow((*COLUMNS, *columns, *more.scores))
    yield line.text
    for row in rows:
        values = [*_record(row).values()]
        if row.error is None:
            values += [value for pair in row.top[1:] for value in pair]
            values += [row.scores[name] for name in more.scores]
        else:
            values += [None] * (len(columns) + len(more.scores))
        writer.writerow("" if value is None else value for value in values)
        yield line.text


class _Line:
    """A file of one line, which is all that a csv writer needs."""

    text = ""

    def write(self, text: str) -> int:
        self.text = text
        return len(text)


def _write_table(rows: "Iterable[FilePrediction]", width: int, more: More) -> Lines:
    """Yield a line for each file; other classes and scores stand at its end, with their names."""
    del more
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
        said = [f"{name} {probability:.3f}" for name, probability in row.top[1:]]
        said += [f"{name}={value:.4g}" for name, value in row.scores.items()]
        end = f"{known:<5}  {', '.join(said)}" if said else known
        yield f"{file}  {label}  {row.probability:>6.3f}  {row.uncertainty:>11.4g}  {end}\n"


def _fit(text: str, width: int, *, is_cut: bool) -> str:
    """Return `text` over `width` columns of a screen; of what is longer the end is kept, and elsewhere all of it."""
    from rich.cells import cell_len

    if is_cut:
        while cell_len(text) > width:
            text = f"…{text.removeprefix('…')[1:]}"
    return text + " " * (width - cell_len(text))


WRITERS: "dict[str, Callable[[Iterable[FilePrediction], int, More], Lines]]" = {
    "table": _write_table,
    "json": _write_json,
    "csv": _write_csv,
}
