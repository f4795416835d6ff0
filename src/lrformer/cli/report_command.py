"""`lrformer report`: the results of an evaluation as one HTML file for a person."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder of an evaluated run, or of results.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="RUN/report.html")
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Title of the report.", show_default="from the folder")
    ] = None,
) -> None:
    """Write the report of what `lrformer evaluate` found; neither the data nor a GPU is needed.

    Example: lrformer report runs/birds --out birds.html
    """
    from lrformer.reports import write_report

    typer.echo(write_report(run, out, title=title))
