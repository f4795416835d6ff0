"""`lrformer reproduce`: the paper's figures and tables, measured anew."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrformer.cli import reproduce_all, reproduce_tables

if TYPE_CHECKING:
    from rich.console import Console

    from lrformer.recipes.figure1 import Row

app = typer.Typer(
    help="Make a figure or a table of the paper again: runs, figures and record.",
    no_args_is_help=True,
)

OutOption = Annotated[Path, typer.Option(help="Folder for pictures, record and runs.")]


@app.command("figure1", short_help="Figure 1: two moons as every method sees them.")
def figure1(
    seeds: Annotated[int, typer.Option(help="Draws of the data, each with a training.")] = 5,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Of deep_ensemble, due, sngp, lrformer, deterministic, mc_dropout, duq, certified; "
            "with commas, or repeated.",
            show_default="all",
        ),
    ] = None,
    out: OutOption = Path("runs/figure1"),
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Trainings at a time.", show_default="one for each core"),
    ] = None,
) -> None:
    """Compare uncertainty on two moons: heat maps, and how well each method knows the distance to the data.

    Finished runs stay in OUT: run the same command again after an interruption, and it goes on.

    Example: lrformer reproduce figure1 --methods sngp,lrformer --seeds 3
    """
    from rich.console import Console

    from lrformer.recipes.contenders import CONTENDERS
    from lrformer.recipes.figure1 import Figure1Config, reproduce_figure1

    named = tuple(
        part.strip() for text in methods or () for part in text.split(",") if part.strip()
    )
    config = Figure1Config(num_seeds=seeds, methods=named or tuple(CONTENDERS))
    console = Console(soft_wrap=True, highlight=False)
    with _progress("two moons") as show:
        rows = reproduce_figure1(out, config, num_workers=workers, show=show)
    _show_rows(rows, console)
    for name in ("figure1.png", "figure1.svg", "figure1.json"):
        console.print(str(out / name))


@app.command("figure3", short_help="Figure 3: GELU and its derivative.")
def figure3(out: OutOption = Path("runs/figure3")) -> None:
    """Draw GELU and its derivative, with the true maximum of the derivative.

    Example: lrformer reproduce figure3 --out figures
    """
    from lrformer.recipes.figure3 import reproduce_figure3

    found = reproduce_figure3(out)
    typer.echo(f"GELU's largest slope is {found.derivative:.12f}, at x = {found.x:.12f}.")
    for name in ("figure3.png", "figure3.svg", "figure3.json"):
        typer.echo(str(out / name))


reproduce_tables.add_commands(app)
app.command("all", short_help=reproduce_all.SHORT)(reproduce_all.reproduce_all)


def _show_rows(rows: "list[Row]", console: "Console") -> None:
    from rich import box
    from rich.table import Table

    from lrformer.recipes.figure1 import write_interval

    num_seeds = rows[0].auroc.num_seeds
    word = "seed" if num_seeds == 1 else "seeds"
    table = Table(
        title=f"Two moons, {num_seeds} {word}: mean and 95% interval",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for title in ("method", "score"):
        table.add_column(title, no_wrap=True)
    for title in ("accuracy", "AUROC", "rank corr."):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.title,
            row.score,
            f"{row.accuracy.mean:.2%}",
            write_interval(row.auroc),
            write_interval(row.rank_correlation),
        )
    console.print(table)


def _progress(text: str):
    """Return a context that gives a function of epochs done and in all; nothing is shown where nobody watches."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    @contextmanager
    def context():
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} epochs"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task(text, total=1)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    return context()
