"""`lrformer bounds`: Lipschitz constants on the screen, as a record and as a picture."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from lrformer.evaluation.bounds_report import BoundsReport


def bounds(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL",
            help="The folder of a run or of a saved model, or a name from `lrformer models`.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Where to measure: a data set or a folder; only for a run.",
            show_default="the run's own test split",
        ),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
    images: Annotated[
        int, typer.Option(min=0, help="Inputs to measure at; 0 measures nothing.")
    ] = 64,
    radius: Annotated[
        float | None,
        typer.Option(
            help="Also prove constants on L2 balls of this radius around the inputs, in the units of "
            "the model's input (after normalization).",
            show_default=False,
        ),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="File for every figure, as JSON.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="File for the picture of bound against measured.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the power iteration.")] = 0,
) -> None:
    """Show what is known of a model's Lipschitz constant, module by module: proved, printed, measured.

    Example: lrformer bounds runs/digits --figure bounds.png
    """
    from lrformer.training.atomic_files import check_writable

    _check_figure(figure)
    _check_radius(radius)
    for path in (record, figure):
        if path is not None:
            check_writable(path)
    network, x = _open(model, data, root, images, device)
    run_bounds(network, x, radius=radius, json_path=record, figure_path=figure, seed=seed)


def _check_figure(path: Path | None) -> None:
    """Raise for a picture that cannot be written, before anything is measured."""
    from lrformer.core import ConfigError

    if path is not None and path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"figure ({path}) must end in .png, .svg or .pdf.")


def _check_radius(radius: float | None) -> None:
    """Raise for a radius that no ball has."""
    from lrformer.core import ConfigError

    if radius is not None and not 0 < radius < math.inf:
        raise ConfigError(f"radius ({radius}) must be positive and finite.")


def _open(
    name: str, data: str | None, root: Path | None, num_images: int, device: str
) -> tuple[nn.Module, Tensor | None]:
    """Return the model and the inputs to measure at, if there are any."""
    import numpy as np
    import torch

    from lrformer.core import ConfigError, choose_device
    from lrformer.evaluation import load_ood_split, load_test_split
    from lrformer.models import create_model
    from lrformer.training import Run, load

    place = choose_device(device)
    is_folder = Path(name).is_dir()
    opened = load(name, device=place) if is_folder else create_model(_known(name)).eval().to(place)
    if not isinstance(opened, Run):
        if data is not None:
            raise ConfigError(
                f"data ({data!r}) needs a run, which says how its inputs are prepared; {name} is only "
                f"a model. Measure it from Python: lrformer.bounds(model, x)."
            )
        return opened, None
    if num_images == 0:
        return opened.method, None
    if data is None:
        split = load_test_split(opened.config, root=root)
    else:
        _, split = load_ood_split(opened.config, data, root=root)
    rows = split.x[: min(num_images, len(split))]
    # A copy: prepared sets are read-only, and torch warns of such arrays.
    return opened.method, opened.preprocess(torch.from_numpy(np.array(rows))).to(place)


def _known(name: str) -> str:
    """Return the name of a model, or raise for what is neither that nor a folder."""
    from lrformer.core import ConfigError
    from lrformer.core.registry import did_you_mean
    from lrformer.models import list_models

    if name not in list_models():
        raise ConfigError(
            f"'{name}' is neither a folder nor a model.{did_you_mean(name, list_models())} "
            "`lrformer models` lists the models; `lrformer train` makes the folder of a run."
        )
    return name


def run_bounds(
    model: nn.Module,
    x: Tensor | None = None,
    *,
    radius: float | None = None,
    json_path: Path | None = None,
    figure_path: Path | None = None,
    num_steps: int = 20,
    seed: int = 0,
) -> BoundsReport:
    """Return the Lipschitz report of `model` after printing it and writing what was asked for.

    Args:
        x: inputs at which to measure; without them only sound constants are given.
        radius: of balls around these inputs on which constants are proved as well.
        json_path: where the record goes.
        figure_path: where the picture goes.
    """
    from lrformer.core import ConfigError, make_generator
    from lrformer.evaluation.bounds import bounds as compute_bounds
    from lrformer.training.atomic_files import replace_file

    if radius is not None and x is None:
        raise ConfigError(
            f"radius ({radius}) needs inputs to be around: give a run, and --images above 0."
        )
    device = next(model.parameters()).device
    generator = make_generator(seed, device)
    with _progress() as progress:
        report = compute_bounds(
            model, x, radius=radius, num_steps=num_steps, generator=generator, progress=progress
        )
    print_bounds(report)
    if json_path is not None:
        replace_file(json_path, f"{json.dumps(report.to_record(), indent=2)}\n".encode())
    if figure_path is not None:
        from lrformer.reports.bounds_figure import plot_bounds

        plot_bounds(report, figure_path)
    return report


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that shows what is measured; nothing is shown where nobody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("measuring {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("constants", total=1)
        yield lambda name, done, total: progress.update(
            task, description=name, completed=done, total=total
        )


def print_bounds(report: BoundsReport) -> None:
    """Print a report as a table with its verdict and what it does not guarantee."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lrformer.cli.table_screen import needed_width
    from lrformer.evaluation.bounds_report import NOT_CERTIFIABLE

    console = Console()

    def grid(*, has_reasons: bool) -> Table:
        title = f"Lipschitz constants of {report.model}"
        table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("module", no_wrap=True)
        on_balls = () if report.local is None else ("F, on balls",)
        for title in ("F, sound", "max, sound", *on_balls, "printed", "measured >="):
            table.add_column(title, justify="right", no_wrap=True)
        if has_reasons:
            table.add_column("why", no_wrap=True)
        for row in report.rows:
            table.add_row(
                row.name,
                _figure(row.frobenius.value),
                _figure(row.max_token.value),
                *([] if row.local is None else [_figure(row.local)]),
                "" if row.printed is None else _figure(row.printed.value),
                "" if row.measured is None else _figure(row.measured),
                *([Text(row.frobenius.reason)] if has_reasons else []),
            )
        return table

    whole = grid(has_reasons=True)
    if needed_width(whole, console) <= console.width:
        console.print(whole)
    else:
        console.print(grid(has_reasons=False))
        for reason, names in _by_reason(report).items():
            console.print(f"{reason}: {', '.join(names)}", markup=False)
        console.print()
    console.print(report.verdict())
    if report.measured:
        low, high = min(report.measured), max(report.measured)
        console.print(
            f"Measured local constants of the logits at {len(report.measured)} inputs: "
            f"{low:.4g} to {high:.4g}."
        )
    if report.radii and not report.is_certifiable:
        console.print(NOT_CERTIFIABLE)
    elif report.radii and not report.is_vacuous:
        ordered = sorted(report.radii)
        console.print(f"Certified L2 radius: median {ordered[len(ordered) // 2]:.4g}.")
    if report.local is not None:
        console.print(report.local.verdict())
    for sentence in report.guarantees():
        console.print(f"- {sentence}")


def _by_reason(report: BoundsReport) -> dict[str, list[str]]:
    """Return the modules that have their constants for one reason, by that reason."""
    found: dict[str, list[str]] = {}
    for row in report.rows:
        found.setdefault(row.frobenius.reason, []).append(row.name)
    return found


def _figure(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3g}"
