"""`lrformer evaluate`: how good a run is, how well it knows it, and how well it knows what it does not know."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lrformer.evaluation import Results, Scores, SeedScores
    from lrformer.evaluation.predict import Advance


def evaluate(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Folders of runs. Several are taken as seeds of one experiment, and so is the folder that train --seeds "
            "made.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Labeled data to measure on: a set, a folder, or FOLDER:SPLIT, with classes of the run.",
            show_default="the test split of the run's data",
        ),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Unknown data: a set (svhn), a folder, FOLDER:SPLIT, other-classes, or made (outliers made of the test "
            "images, which are no real unknown). Repeat for more. Without it, what comes with the run's data.",
            show_default=False,
        ),
    ] = None,
    corruptions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Corrupted test images: all, a kind (fog), or KIND:SEVERITY (fog:3). Repeat for more.",
            show_default="none",
        ),
    ] = None,
    arrays: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="PROBS LABELS",
            help="Instead of a run: .npy files with the probabilities and labels of any model.",
            show_default=False,
        ),
    ] = None,
    ood_arrays: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="With --arrays: probabilities on unknown data, PATH or NAME=PATH. Repeat for more.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the results go, and nothing in a run is changed; of several runs to OUT/seed-N each, with the mean "
            "over them in OUT/seeds.json.",
            show_default="the run's own folder",
        ),
    ] = None,
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.")] = 15,
    threshold: Annotated[
        float, typer.Option(help="Wrong with a probability above this is overconfident.")
    ] = 0.9,
    draws: Annotated[int, typer.Option(help="Draws of the bootstrap.")] = 1000,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    temperature: Annotated[
        bool, typer.Option(help="Apply the temperature that was fitted on validation.")
    ] = True,
    batch_size: Annotated[int, typer.Option(help="Samples predicted at once.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    root: Annotated[
        Path | None,
        typer.Option(help="Where prepared data are kept.", show_default="that of the run"),
    ] = None,
    skip_unreadable: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable",
            help="Leave out image files that cannot be decoded, and say how many; a run that was trained so always does.",
        ),
    ] = False,
    report: Annotated[bool, typer.Option(help="Write report.html as well.")] = True,
) -> None:
    """Measure accuracy, calibration, overconfidence and detection of unknown data, with intervals.

    Example: lrformer evaluate runs/birds --ood svhn --ood photos/other --corruptions fog:3

    Example: lrformer evaluate runs/ten-seeds --ood svhn --out results

    Example: lrformer evaluate --arrays probs.npy labels.npy --ood-arrays svhn=svhn.npy --out results
    """
    from lrformer.core import ConfigError
    from lrformer.evaluation import EvaluationConfig, evaluate_run, over_seeds
    from lrformer.evaluation.plain_arrays import evaluate_arrays
    from lrformer.training.atomic_files import check_writable
    from lrformer.training.metrics_file import METRICS_FILE
    from lrformer.training.run_config import CONFIG_FILE
    from lrformer.training.run_folder import check_whole

    config = EvaluationConfig(
        num_bins=bins, threshold=threshold, num_draws=draws, level=level, seed=seed
    )
    places = places or []
    if out is not None:
        check_writable(out / METRICS_FILE)
    if arrays is not None:
        _check_arrays_alone(places, data, ood, corruptions)
        if out is not None and (out / CONFIG_FILE).is_file():
            raise ConfigError(
                f"{out} is a run, with figures of its own; choose another --out for --arrays."
            )
        if out is not None:
            _say_replaced(out, way_out="another --out FOLDER keeps it")
        results = evaluate_arrays(*arrays, ood=[*(ood_arrays or []), *places], config=config)
        _finish(results, out, report=report, ood_option="--ood-arrays")
        return
    if ood_arrays:
        raise ConfigError(
            "--ood-arrays belongs to --arrays; for a run, name unknown data by --ood."
        )
    runs, ood, corruptions = _sort_places(places, ood, corruptions or [])
    folders = _result_folders(runs, out)
    _check_own(runs, folders, out)
    for run, folder in zip(runs, folders, strict=True):
        # The last of many seeds may not be finished yet.
        check_whole(run)
        _check_results(folder)
    way_out = f"{'' if out is None else 'another '}--out FOLDER keeps it"
    for folder in folders:
        _say_replaced(folder, way_out=way_out)
    done = []
    for run, folder in zip(runs, folders, strict=True):
        with _progress(f"predicting {run}") as advance:
            results = evaluate_run(
                run,
                data=data,
                ood=ood,
                corruptions=corruptions,
                config=config,
                is_calibrated=temperature,
                device=device,
                batch_size=batch_size,
                root=root,
                skip_unreadable=skip_unreadable,
                advance=advance,
            )
        _finish(results, folder, report=report, ood_option="--ood")
        done.append(results.scores)
    if len(runs) > 1:
        _show_seeds(over_seeds(done, level=level), out)
        _warn(done)


def _check_results(folder: Path) -> None:
    """Raise if the results could not be put into `folder`, before anything is predicted."""
    from lrformer.training.atomic_files import check_writable
    from lrformer.training.metrics_file import METRICS_FILE, read_metrics

    check_writable(folder / METRICS_FILE)
    read_metrics(folder)


def _result_folders(runs: list[Path], out: Path | None) -> list[Path]:
    """Return where the results of each run go: to its own folder, or to `out`, of several runs by their seeds."""
    from lrformer.training.run_config import read_run_config
    from lrformer.training.seed_folders import seed_folder

    if out is None:
        return runs
    if len(runs) == 1:
        return [out]
    # Two runs may have the same name, and never the same seed.
    return [seed_folder(out, read_run_config(run).train.seed) for run in runs]


def _check_own(runs: list[Path], folders: list[Path], out: Path | None) -> None:
    """Raise where results would lie in a run that is not theirs; the mean over several is no run's."""
    from lrformer.core import ConfigError
    from lrformer.training.run_config import CONFIG_FILE

    taken = [
        folder
        for folder, run in zip(folders, runs, strict=True)
        if folder.resolve() != run.resolve()
    ]
    if out is not None and len(runs) > 1:
        taken.append(out)
    for folder in taken:
        if (folder / CONFIG_FILE).is_file():
            raise ConfigError(
                f"{folder} is another run, with figures of its own; choose another --out."
            )


def _say_replaced(folder: Path, *, way_out: str) -> None:
    """Say before the work that it takes the place of an earlier evaluation, if there is one."""
    from contextlib import suppress

    from lrformer.core import ConfigError
    from lrformer.evaluation import load_scores
    from lrformer.evaluation.scores import is_evaluated

    if not is_evaluated(folder):
        return
    where = ""
    # One that this version cannot read is replaced like any other.
    with suppress(ConfigError):
        where = f" on {load_scores(folder).test_set}"
    typer.echo(
        f"The earlier evaluation{where} in {folder} is replaced when this one is finished; {way_out}.",
        err=True,
    )


def _check_arrays_alone(
    places: list[str], data: str | None, ood: list[str] | None, corruptions: list[str] | None
) -> None:
    """Raise for what needs a run, which arrays are not, rather than leave it out in silence."""
    from lrformer.core import ConfigError

    if data is not None:
        raise ConfigError(
            f"--data ({data}) needs a run that can predict; --arrays holds the labels itself."
        )
    if ood:
        raise ConfigError(
            "--ood needs a run that can predict; with --arrays, give the probabilities on unknown data "
            "by --ood-arrays."
        )
    if corruptions:
        raise ConfigError("--corruptions needs a run that can predict; --arrays is none.")
    for place in places:
        if Path(place).is_dir():
            raise ConfigError(f"{place} is a folder; evaluate a run or --arrays, not both at once.")


def _sort_places(
    places: list[str], ood: list[str] | None, corruptions: list[str]
) -> tuple[list[Path], list[str] | None, list[str]]:
    """Return runs, OOD sets and corruptions: after `--ood a b` the command line counts `b` as one more place."""
    from lrformer.core import ConfigError
    from lrformer.data import list_corruptions
    from lrformer.evaluation.seeds import check_seeds_of_one
    from lrformer.training.run_config import CONFIG_FILE, check_there
    from lrformer.training.seed_folders import seed_folders

    runs, kinds = [], ["all", *list_corruptions()]
    for place in places:
        if (Path(place) / CONFIG_FILE).is_file():
            runs.append(Path(place))
        elif inside := [
            path for path in seed_folders(Path(place)) if (path / CONFIG_FILE).is_file()
        ]:
            runs += inside
        elif corruptions and place.partition(":")[0] in kinds:
            corruptions = [*corruptions, place]
        elif ood and runs:
            ood = [*ood, place]
        else:
            check_there(Path(place))
    if len({run.resolve() for run in runs}) < len(runs):
        raise ConfigError(
            f"a run is named twice ({', '.join(map(str, runs))}); several runs are taken as seeds of one experiment, "
            "and one run is one seed."
        )
    check_seeds_of_one(runs)
    if not runs:
        raise ConfigError(
            "nothing to evaluate: name the folder of a run, or --arrays PROBS LABELS."
        )
    return runs, ood, corruptions


def _finish(results: "Results", folder: Path | None, *, report: bool, ood_option: str) -> None:
    """Write everything, and then show the first figures: a pipe that is closed must not cost an evaluation."""
    from rich.console import Console

    from lrformer.evaluation.text_table import text_lines, text_rows, text_title

    written = []
    if folder is not None:
        results.save(folder)
        written.append(f"Every figure: {folder / 'metrics.json'}")
        if report:
            from lrformer.reports import write_report

            written.append(f"Report: {write_report(folder)}")
    _show(text_title(results.scores), "value", text_rows(results.scores))
    _warn([results.scores])
    if not results.ood:
        written.insert(
            0, f"Unknown data: none was measured; name some by {ood_option}{_hint(results)}."
        )
    written = [*text_lines(results.scores), *written]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for line in written:
        console.print(line)


def _hint(results: "Results") -> str:
    """Return the end of a sentence that says what is left without unknown data; of points nothing can be made."""
    can_be_made = bool(results.gallery.entries) and not results.scores.of_role("made")
    return ", or have some made for a first check by --ood made" if can_be_made else ""


def _warn(runs: "Sequence[Scores]") -> None:
    """Show, with the figures, where a run has learned from what it is measured on."""
    from rich.console import Console

    from lrformer.reports.findings import caution

    console = Console(soft_wrap=True, highlight=False, markup=False)
    for said in dict.fromkeys(map(caution, runs)):
        if said is not None:
            console.print(f"Warning: {said}")


def _show_seeds(scores: "SeedScores", out: Path | None) -> None:
    """Write every metric over the runs, and show mean and interval."""
    from lrformer.core import to_record
    from lrformer.evaluation.scores import SEEDS_FILE
    from lrformer.evaluation.text_table import text_rows
    from lrformer.training.atomic_files import write_json

    if out is not None:
        write_json(out / SEEDS_FILE, to_record(scores))
    _show(
        f"{scores.num_seeds} runs; uncertainty by {scores.default_score}",
        "mean",
        text_rows(scores),
    )
    if out is not None:
        typer.echo(f"Over the seeds: {out / SEEDS_FILE}")


def _show(title: str, value: str, rows: list[tuple[str, str, str, str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("set", "metric", value, "interval", title=escape(title), title_justify="left")
    # On a narrow screen names give way, and figures do not.
    for column in table.columns[:2]:
        column.overflow = "fold"
    for column in table.columns[2:]:
        column.justify, column.no_wrap = "right", True
    before = None
    for dataset, *cells in rows:
        if before not in (None, dataset):
            table.add_section()
        table.add_row("" if dataset == before else escape(dataset), *cells)
        before = dataset
    Console().print(table)


@contextmanager
def _progress(text: str) -> "Iterator[Advance]":
    """Give a function to count samples with; nothing is shown where nobody watches."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}: {task.completed:,.0f} samples"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(text, total=None)
        yield lambda number: progress.advance(task, number)
