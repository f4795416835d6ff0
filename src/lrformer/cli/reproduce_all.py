"""`lrformer reproduce all`: every table in every setting that the page of results has, one after the other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrformer.cli.predict_command import EXIT_SOME_FAILED
from lrformer.cli.reproduce_tables import (
    DEFAULT_DRAWS,
    CompileOption,
    DataOption,
    DeviceOption,
    DrawsOption,
    ListOption,
    RetryOption,
    RootOption,
    UnknownOption,
    circumstances_of,
    say_own_unknown,
)

if TYPE_CHECKING:
    from lrformer.recipes.whole import Whole

SHORT = "All tables, what says most first."


def reproduce_all(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the runs; not needed for --list with --records.", show_default=False
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the records, DATA-TABLE.json; read first, written after every run.",
            show_default="OUT, TABLE.json",
        ),
    ] = None,
    data: DataOption = "cifar10",
    ood: UnknownOption = None,
    root: RootOption = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Minutes for all; a run that would not fit is not begun.", min=0.0),
    ] = None,
    draws: DrawsOption = DEFAULT_DRAWS,
    device: DeviceOption = "auto",
    compile_model: CompileOption = None,
    retry: RetryOption = False,
    is_listing: ListOption = False,
) -> None:
    """Make the next missing run of every table in every setting of docs/results.md, what says most first.

    All share --time-limit: where a run of one part would not fit into what is left, the next part is looked at.
    Stop it by Ctrl-C, and the same command goes on; runs that the records hold are not made again.
    The exit code is 1 where a run has failed, or was skipped.
    Start it two to four times to share one GPU: each takes the next run that no other has in hand.

    Example: lrformer reproduce all --out runs/tables --records benchmarks/results --time-limit 9
    """
    from lrformer.recipes.settings import usual_unknown
    from lrformer.recipes.whole import Place
    from lrformer.recipes.whole import reproduce_all as make_all

    sets = (
        usual_unknown(data)
        if ood is None
        else tuple(part.strip() for part in ood.split(",") if part.strip())
    )
    if ood is None and not is_listing:
        say_own_unknown(data)
    how = circumstances_of(sets, device=device, is_compiling=compile_model, draws=draws, command="")
    whole = make_all(
        Place(data=data, out=out, records=records, root=root),
        how=how,
        time_limit=None if time_limit is None else 60 * time_limit,
        is_retrying=retry,
        is_listing=is_listing,
        say=lambda text: typer.echo(text, err=True),
    )
    _show(whole)
    has_failed = any(
        standing.status == "failed" for part in whole.standings for standing in part.left
    )
    has_skipped = any(part.skipped for part in whole.standings)
    if not is_listing and (has_failed or has_skipped):
        raise typer.Exit(EXIT_SOME_FAILED)


def _show(whole: "Whole") -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as Grid

    from lrformer.cli.table_screen import needed_width
    from lrformer.recipes.table import describe_variant

    console = Console(soft_wrap=True, highlight=False)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("", "settings", "finished", "left", "about"):
        grid.add_column(title, no_wrap=title != "left")
    for number, standing in enumerate(whole.standings, 1):
        table = standing.result.table
        num_runs = len(standing.result.standings)
        grid.add_row(
            f"{number} {table.name}",
            escape(describe_variant(table.variant)),
            f"{standing.num_finished} of {num_runs}",
            standing.left_in_words,
            standing.time_in_words,
        )
    Console(width=max(console.width, needed_width(grid, console)), highlight=False).print(grid)
    said: set[tuple[str, str, str]] = set()
    for number, standing in enumerate(whole.standings, 1):
        for run in standing.left:
            name = run.run.name
            # Parts with more seeds of the same have the same runs.
            key = (standing.part.table, name, str(run.run.variant))
            if key in said:
                continue
            said.add(key)
            if run.status == "missing" and name not in standing.skipped:
                continue
            why = f" {run.attempts[0].error}" if run.status == "failed" else ""
            if name in standing.skipped:
                why = f" (skipped: {standing.skipped[name]})"
            console.print(escape(f"{run.status}: {number} {standing.part.table}, {name}{why}"))
    for reason in whole.stops:
        console.print(escape(f"Stopped: {reason}."))
