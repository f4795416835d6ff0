"""`lrformer export`: the whole predictor of a run as one file that runs without this package."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="The file: .onnx (needs the extra export) or .pt2 (torch.export).",
            show_default=False,
        ),
    ],
) -> None:
    """Write what RUN predicts with as one file: images in, probabilities, uncertainty and flag out.

    The file runs with onnxruntime or torch alone. It is opened again and compared with the run before it is kept.

    Example: lrformer export runs/birds birds.onnx
    """
    from lrformer.evaluation.export import export as export_run

    exported = export_run(run, out)
    about, size = exported.about, exported.path.stat().st_size
    typer.echo(
        f"{exported.path}: {about['method']} on {about['model']}, {len(about['class_names'])} classes, {size / 1e6:.2f} MB"
    )
    typer.echo(f"{'input':<9}{about['input']}")
    typer.echo(
        f"{'flag':<9}in distribution up to {about['score']} {about['threshold']:.4g}, which accepts "
        f"{100 * about['true_positive_rate']:.4g}% of the validation split"
    )
    typer.echo(f"{'checked':<9}{exported.agreement.describe()}")
