"""`lrformer compare`: two methods side by side, from what their evaluations kept."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

WITH = "--with"


class CompareCommand(TyperCommand):
    """A command whose option `--with` takes all places up to the next option, as many as a pattern of the shell gives."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left after the options, each place behind `--with` being one of its own."""
        return super().parse_args(ctx, repeat_with(args))


def repeat_with(args: list[str]) -> list[str]:
    """Return the arguments with `--with A B` written as `--with=A --with=B`."""
    written: list[str] = []
    is_behind = False
    for arg in args:
        if arg == WITH:
            is_behind = True
        elif arg.startswith("-"):
            is_behind = arg.startswith(f"{WITH}=")
            written.append(arg)
        else:
            written.append(f"{WITH}={arg}" if is_behind else arg)
    return written


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="An evaluated run, its seeds one by one, or the folder of seeds that train --seeds made.",
            show_default=False,
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            WITH,
            metavar="RUN...",
            help="The same of the other method: all that follows, up to the next option.",
            show_default=False,
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    draws: Annotated[int, typer.Option(help="Draws of the bootstrap, of one run each.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record, and no table.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the record there as well.", show_default="not kept"
        ),
    ] = None,
) -> None:
    """Show every figure of two methods, the difference, and whether its interval excludes zero.

    Reads what evaluate kept; nothing is trained or predicted. Over two or more common seeds the differences are taken
    seed by seed (Student's t); with one run on each side the test samples are resampled, the same for both.

    Example: lrformer compare runs/lrf --with runs/plain --out lrf-against-plain.json
    """
    from lrformer.core import ConfigError, to_record
    from lrformer.evaluation import compare_runs
    from lrformer.training.atomic_files import check_writable, write_json

    if not runs or not others:
        raise ConfigError(
            "two sides are compared: lrformer compare RUN... --with RUN..., where all that follows --with is of the other."
        )
    if out is not None:
        check_writable(out)
    comparison = compare_runs(runs, others, level=level, num_draws=draws, seed=seed)
    record = to_record(comparison)
    if out is not None:
        write_json(out, record)
    if as_json:
        typer.echo(json.dumps(record, indent=1))
        return
    typer.echo(str(comparison))
    if out is not None:
        typer.echo(f"Record: {out}")
