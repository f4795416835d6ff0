"""The commands together, and what happens when one fails or is interrupted."""

import io
import sys
import warnings
from typing import Annotated, Any

import typer

from lrformer._version import __version__
from lrformer.cli import (
    bench_command,
    bounds_command,
    compare_command,
    demo_command,
    evaluate_command,
    export_command,
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
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
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


# One line each in the list of commands; the rest is in their own help.
app.command("demo", short_help="Train both models on digits, in two minutes.")(demo_command.demo)
app.command("models", short_help="List the models that have a name.")(models_command.models)
app.command(
    "train",
    short_help="Train a model; the same command resumes it.",
    epilog=train_command.EPILOG,
)(train_command.train)
app.command("refit", short_help="Fit the posterior of a run anew.")(refit_command.refit)
app.command("evaluate", short_help="Measure a run, and write its report.")(
    evaluate_command.evaluate
)
app.command(
    "compare", short_help="Compare two methods, with intervals.", cls=compare_command.CompareCommand
)(compare_command.compare)
app.command("predict", short_help="Classify image files, and flag unknown ones.")(
    predict_command.predict
)
app.command("export", short_help="Write a run as one file that runs without lrformer.")(
    export_command.export
)
app.command("report", short_help="Write the report of an evaluation again.")(report_command.report)
app.command("bounds", short_help="Show a model's Lipschitz constants.")(bounds_command.bounds)
app.add_typer(
    reproduce_command.app, name="reproduce", short_help="Make a table or figure of the paper."
)
app.add_typer(bench_command.app, name="bench", short_help="Measure speed, memory and error.")


def _show_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Show a warning of ours as one line, and others as Python does."""
    if category.__module__.startswith("lrformer."):
        typer.echo(f"lrformer: warning: {message}", err=True)
    else:
        typer.echo(warnings.formatwarning(message, category, *place[:2]), err=True, nl=False)


def _write_all_letters(stream: Any) -> None:
    """Let a stream of another encoding than UTF-8 write what it has no letter for as a code, where it would raise."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        _write_all_letters(stream)
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
                "lrformer: interrupted. A training, a table, a figure, a bench or the demo goes on with the same command; "
                "evaluate, predict, export and bounds begin anew.",
                err=True,
            )
        if stop.code in (None, 0, EXIT_INTERRUPTED):
            _leave_group()
        raise


def _leave_group() -> None:
    """Leave the processes that trained together; a command that did not need torch does not import it for that."""
    if "torch" in sys.modules:
        from lrformer.core.processes import leave_group

        leave_group()
