"""`lrformer reproduce ablation|attentions|alpha|main|references`: tables of the paper, trained and measured anew."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrformer.cli.predict_command import EXIT_SOME_FAILED

if TYPE_CHECKING:
    from lrformer.recipes.table_engine import Reproduction
    from lrformer.recipes.table_run import Circumstances

# Names and words, so that --help needs no torch; lrformer.recipes knows what they stand for.
SUMMARIES = {
    "ablation": "Table 6: transformer and LRFormer (each with linear and GP head), SNGP and DUE on one backbone.",
    "attentions": "Table 3: dot product, L2, SCSA, LRSA and its M variant under one head.",
    "alpha": "Table 4: the effect of alpha, as printed and free of the number of tokens.",
    "main": "Table 1: the best single model from scratch, beside the transformer of the same recipe.",
    "references": "Table 1: WRN-28-10 as it is and under SNGP, with their published settings.",
}
SHORT = {
    "ablation": "Table 6: methods on one transformer.",
    "attentions": "Table 3: attentions under one head.",
    "alpha": "Table 4: the effect of alpha.",
    "main": "Table 1: the best single model.",
    "references": "Table 1: WRN-28-10 and SNGP.",
}
# Which of the options belong to which tables; the others refuse them.
OPTIONS = {
    "optimizer": ("ablation", "attentions", "alpha", "references"),
    "pixels": ("ablation", "attentions", "alpha"),
    "alpha": ("ablation", "attentions", "main"),
}
OPTIMIZERS = {"references": "published (each row its own) or cosine (SNGP's rate for both)."}
OTHER_OPTIMIZERS = "paper (SGD), modern (AdamW) or muon."
DEFAULT_DRAWS = 200
EXPLANATION = """

The next missing run is trained, evaluated and recorded, until all are there.
Stop it by Ctrl-C or --time-limit, and the same command goes on.
Runs that RECORD holds are not made again, wherever they were made.
The exit code is 1 where a run that was asked for has failed, or was skipped.
Start it two to four times to share one GPU: each takes the next run that no other has in hand.

Example: lrformer reproduce {name} --out runs/{name} --epochs 15 --seeds 3 --time-limit 8
"""


# Options of the single tables and of all.
DataOption = Annotated[str, typer.Option(help="A data set or a folder.")]
UnknownOption = Annotated[
    str | None,
    typer.Option(help="Unknown sets, with commas.", show_default="svhn and the other CIFAR"),
]
RootOption = Annotated[
    Path | None,
    typer.Option(help="Where prepared data are kept.", show_default="~/.cache/lrformer"),
]
DrawsOption = Annotated[int, typer.Option(min=1, help="Draws of the bootstrap.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
CompileOption = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the backbones and the augmentation.",
        show_default="on a GPU",
    ),
]
RetryOption = Annotated[
    bool, typer.Option("--retry", help="Try runs again that are recorded as failed.")
]
ListOption = Annotated[
    bool, typer.Option("--list", help="Show what is done and missing, and run nothing.")
]


def add_commands(app: typer.Typer) -> None:
    """Add one command for each table to `app`; they differ in their name alone."""
    for name, summary in SUMMARIES.items():
        app.command(name, short_help=SHORT[name], help=summary + EXPLANATION.format(name=name))(
            _command(name)
        )


def _command(table: str) -> Any:
    def command(
        out: Annotated[
            Path | None,
            typer.Option(
                help="Folder of the runs; not needed for --list with --record.", show_default=False
            ),
        ] = None,
        record: Annotated[
            Path | None,
            typer.Option(
                help="Read first, written after every run.", show_default="OUT/TABLE.json"
            ),
        ] = None,
        rows: Annotated[
            str | None, typer.Option(help="Some rows, with commas.", show_default="all")
        ] = None,
        seeds: Annotated[
            int | None,
            typer.Option(
                min=1, help="Runs of every row.", show_default="3, or 1 where a run takes minutes"
            ),
        ] = None,
        epochs: Annotated[
            int | None, typer.Option(min=1, help="Of every run.", show_default="the source's")
        ] = None,
        data: DataOption = "cifar10",
        ood: UnknownOption = None,
        root: RootOption = None,
        time_limit: Annotated[
            float | None,
            typer.Option(help="Minutes; a run that would not fit is not begun.", min=0.0),
        ] = None,
        optimizer: Annotated[
            str | None,
            typer.Option(
                help=OPTIMIZERS.get(table, OTHER_OPTIMIZERS),
                show_default="the table's",
                hidden=table not in OPTIONS["optimizer"],
            ),
        ] = None,
        pixels: Annotated[
            int | None,
            typer.Option(
                help="32, or 224 as printed.",
                show_default="32",
                hidden=table not in OPTIONS["pixels"],
            ),
        ] = None,
        alpha: Annotated[
            float | None,
            typer.Option(
                help="Of LRSA, where a row has no own.",
                show_default="the recipe's",
                hidden=table not in OPTIONS["alpha"],
            ),
        ] = None,
        batch_size: Annotated[
            int | None, typer.Option(min=1, help="Of every run.", show_default="the recipe's")
        ] = None,
        channels: Annotated[
            int | None,
            typer.Option(help="1 or 3, for image files.", show_default="those of the files"),
        ] = None,
        skip_unreadable: Annotated[
            bool,
            typer.Option("--skip-unreadable", help="Leave out image files that cannot be decoded."),
        ] = False,
        weight_decay: Annotated[
            float | None, typer.Option(min=0.0, help="Of every run.", show_default="the recipe's")
        ] = None,
        model_option: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME=VALUE", help="Of the model of every row; repeatable."),
        ] = None,
        draws: DrawsOption = DEFAULT_DRAWS,
        device: DeviceOption = "auto",
        compile_model: CompileOption = None,
        retry: RetryOption = False,
        is_listing: ListOption = False,
    ) -> None:
        from lrformer.recipes.settings import Settings, command_of, make_table, usual_unknown
        from lrformer.recipes.table_engine import record_path_of, reproduce_table
        from lrformer.recipes.table_record import spelled_as_recorded

        data = spelled_as_recorded(record_path_of(table, out, record), data)
        settings = Settings(
            optimizer=optimizer,
            pixels=pixels,
            alpha=alpha,
            epochs=epochs,
            batch_size=batch_size,
            channels=channels,
            weight_decay=weight_decay,
            skip_unreadable=skip_unreadable,
            model_options=_parse_options(model_option),
            root=root,
        )
        made = make_table(table, data, settings)
        sets = usual_unknown(data) if ood is None else _names(ood)
        if ood is None and not is_listing:
            say_own_unknown(data)
        command = command_of(made, num_seeds=seeds or made.num_seeds, ood=sets, draws=draws)
        how = circumstances_of(
            sets, device=device, is_compiling=compile_model, draws=draws, command=command
        )
        result = reproduce_table(
            made,
            out,
            record_path=record,
            rows=None if rows is None else _names(rows),
            num_seeds=seeds,
            how=how,
            time_limit=None if time_limit is None else 60 * time_limit,
            is_retrying=retry,
            is_listing=is_listing,
            say=lambda text: typer.echo(text, err=True),
        )
        _show(result, is_listing=is_listing)
        is_left = any(standing.status == "failed" for standing in result.standings)
        if not is_listing and (is_left or result.skipped):
            raise typer.Exit(EXIT_SOME_FAILED)

    return command


def say_own_unknown(data: str) -> None:
    """Name the unknown sets that lie in the folder of the data, where `evaluate` would take them and a table does not."""
    from lrformer.data import DATASETS, list_splits
    from lrformer.data.folder_layout import OOD_PREFIX

    if data in DATASETS or not Path(data).expanduser().is_dir():
        return
    own = [f"{data}:{name}" for name in list_splits(data) if name.startswith(OOD_PREFIX)]
    if own:
        typer.echo(
            f"the unknown sets in {data} are not looked at; --ood {shlex.quote(','.join(own))} takes them",
            err=True,
        )


def circumstances_of(
    ood: tuple[str, ...], *, device: str, is_compiling: bool | None, draws: int, command: str
) -> "Circumstances":
    """Return how runs are carried out: compiled on a GPU, unless it is said."""
    import torch

    from lrformer.evaluation import EvaluationConfig
    from lrformer.recipes.table_run import Circumstances
    from lrformer.training import RuntimeConfig
    from lrformer.training.progress import SECONDS_BETWEEN_LINES

    has_gpu = device != "cpu" and torch.cuda.is_available()
    runtime = RuntimeConfig(
        device=device,
        compile=has_gpu if is_compiling is None else is_compiling,
        seconds_between_lines=SECONDS_BETWEEN_LINES,
    )
    return Circumstances(
        ood=ood,
        runtime=runtime,
        evaluation=EvaluationConfig(num_draws=draws),
        command=command,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_options(pairs: list[str] | None) -> dict[str, Any]:
    from lrformer.cli.train_command import parse_options

    return parse_options(pairs, "--model-option")


def _show(result: "Reproduction", *, is_listing: bool) -> None:
    """Print the table, the runs that are not finished, and where the record is; in a listing, what else it holds."""
    from rich.console import Console
    from rich.markup import escape

    from lrformer.cli.table_screen import print_figures

    console = Console(soft_wrap=True, highlight=False)
    print_figures(result, console)
    for standing in result.standings:
        if standing.status != "finished":
            name = standing.run.name
            why = standing.attempts[0].error if standing.status == "failed" else ""
            if name in result.skipped:
                why = f"(skipped: {result.skipped[name]})"
            console.print(escape(f"{standing.status}: {name} {why}".rstrip()))
    finished = sum(standing.status == "finished" for standing in result.standings)
    place = str(result.record_path)
    if not result.record_path.exists():
        place += " does not exist yet"
    console.print(escape(f"{finished} of {len(result.standings)} runs are finished: {place}"))
    if any(standing.status == "failed" for standing in result.standings):
        console.print("--retry tries failed runs again")
    if is_listing:
        for line in _others(result):
            console.print(escape(line))
    elif result.others:
        count = len(result.others)
        console.print(
            f"the record also holds {count} run{'' if count == 1 else 's'} with other settings; "
            "--list names them"
        )
    if result.stopped is not None:
        console.print(escape(f"Stopped: {result.stopped}."))


def _others(result: "Reproduction") -> list[str]:
    """Return a line for each of the other settings under which the record holds the same rows and seeds."""
    from collections import Counter

    from lrformer.recipes.settings import ood_option, variant_options
    from lrformer.recipes.table import describe_variant

    data = result.table.data
    counts = Counter(
        f"({describe_variant(run.variant)}; unknown sets: {', '.join(run.ood) or 'none'}): "
        f"{' '.join([*variant_options(run.variant), *ood_option(data, run.ood)])}"
        for run in result.others
    )
    return [
        f"the record also holds {number} run{'' if number == 1 else 's'} with other settings {words}"
        for words, number in counts.items()
    ]
