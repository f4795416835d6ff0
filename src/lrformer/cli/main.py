"""The commands together, and what happens when one fails or is interrupted."""

import sys
from typing import Annotated

import typer

from lrformer._version import __version__
from lrformer.cli import (
    bench_command,
    bounds_command,
    demo_command,
    evaluate_command,
    models_command,
    predict_command,
    refit_command,
    report_command,
    reproduce_command,
    train_command,
)
from lrformer.core.errors import LRFormerError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="lrformer",
    help="Transformers that know when they don't know.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"lrformer {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Transformers that know when they don't know."""


app.command("demo")(demo_command.demo)
app.command("models")(models_command.models)
app.command("train", epilog=train_command.EPILOG)(train_command.train)
app.command("refit")(refit_command.refit)
app.command("evaluate")(evaluate_command.evaluate)
app.command("predict")(predict_command.predict)
app.command("report")(report_command.report)
app.command("bounds")(bounds_command.bounds)
app.add_typer(reproduce_command.app, name="reproduce")
app.add_typer(bench_command.app, name="bench")


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    try:
        app()
    except LRFormerError as error:
        typer.echo(f"lrformer: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    except OSError as error:
        typer.echo(f"lrformer: {error}.", err=True)
        sys.exit(EXIT_USER_ERROR)
    except SystemExit as stop:
        if stop.code == EXIT_INTERRUPTED:  # typer turns Ctrl-C into this
            typer.echo(
                "lrformer: interrupted. A training, a table or a bench goes on with the same command; evaluate, predict "
                "and bounds begin anew.",
                err=True,
            )
        raise
