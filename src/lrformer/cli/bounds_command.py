"""`lrformer bounds`: Lipschitz constants on the screen, as a record and as a picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
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
    record: Annotated[Path | None, typer.Option(help="File for every figure, as JSON.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="File for the picture of bound against measured.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the power iteration.")] = 0,
) -> None:
    """Show what is known of a model's Lipschitz constant, module by module: proved, printed, measured.

    Example: lrformer bounds runs/digits --figure bounds.png
    """
    _check_figure(figure)
    network, x = _open(model, data, root, images)
    run_bounds(network, x, json_path=record, figure_path=figure, seed=seed)


def _check_figure(path: Path | None) -> None:
    """Raise for a picture that cannot be written, before anything is measured."""
    from lrformer.core import ConfigError

    if path is not None and path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"figure ({path}) must end in .png, .svg or .pdf.")


def _open(
    name: str, data: str | None, root: Path | None, num_images: int
) -> tuple[nn.Module, Tensor | None]:
    """Return the model and the inputs to measure at, if there are any."""
    import torch

    from lrformer.core import ConfigError
    from lrformer.evaluation import load_ood_split, load_test_split
    from lrformer.models import create_model
    from lrformer.training import Run, load

    opened = load(name) if Path(name).is_dir() else create_model(name).eval()
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
    return opened.method, opened.preprocess(torch.as_tensor(rows))


def run_bounds(
    model: nn.Module,
    x: Tensor | None = None,
    *,
    json_path: Path | None = None,
    figure_path: Path | None = None,
    num_steps: int = 20,
    seed: int = 0,
) -> BoundsReport:
    """Return the Lipschitz report of `model` after printing it and writing what was asked for.

    Args:
        x: inputs at which to measure; without them only sound constants are given.
        json_path: where the record goes.
        figure_path: where the picture goes.
    """
    from lrformer.core import make_generator
    from lrformer.evaluation.bounds import bounds as compute_bounds

    device = next(model.parameters()).device
    report = compute_bounds(model, x, num_steps=num_steps, generator=make_generator(seed, device))
    print_bounds(report)
    if json_path is not None:
        json_path.write_text(json.dumps(report.to_record(), indent=2) + "\n", encoding="utf-8")
    if figure_path is not None:
        from lrformer.reports.bounds_figure import plot_bounds

        plot_bounds(report, figure_path)
    return report


def print_bounds(report: BoundsReport) -> None:
    """Print a report as a table with its verdict and what it does not guarantee."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"Lipschitz constants of {report.model}")
    table.add_column("module")
    for title in ("F, sound", "max, sound", "printed", "measured >="):
        table.add_column(title, justify="right")
    table.add_column("why")
    for row in report.rows:
        table.add_row(
            row.name,
            _figure(row.frobenius.value),
            _figure(row.max_token.value),
            "" if row.printed is None else _figure(row.printed.value),
            "" if row.measured is None else _figure(row.measured),
            row.frobenius.reason,
        )
    console.print(table)
    console.print(report.verdict())
    if report.measured:
        low, high = min(report.measured), max(report.measured)
        console.print(
            f"Measured local constants of the logits at {len(report.measured)} inputs: "
            f"{low:.4g} to {high:.4g}."
        )
    if report.radii and not report.is_vacuous:
        ordered = sorted(report.radii)
        console.print(f"Certified L2 radius: median {ordered[len(ordered) // 2]:.4g}.")
    for sentence in report.guarantees():
        console.print(f"- {sentence}")


def _figure(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.4g}"
