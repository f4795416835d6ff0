"""The curves of a training run, from its log: one SVG element for each, and nothing where nothing was logged."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrformer.reports.inline_svg import SERIES, drawing, finish, legend_above, to_svg
from lrformer.reports.page import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Up to so many epochs each is a dot as well; one epoch alone would otherwise be no line at all.
MOST_DOTS = 60

History = Sequence[Mapping[str, Any]]
Points = tuple[list[int], list[float]]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What one figure draws of the log, and how it is explained.

    Attributes:
        lines: name in the log and in the legend of each line.
        axis: label of the values.
        shape: what is done to the axes beyond their labels.
    """

    title: str
    meaning: str
    lines: Mapping[str, str]
    axis: str
    shape: Callable[["Axes"], object] = lambda _: None


TRAINING_CURVES = (
    Curves(
        title="Loss",
        meaning="What was minimized on the training images, and the NLL of the validation images. Where the second "
        "rises while the first still falls, the model learns its training images by heart.",
        lines={"loss": "training loss", "val_nll": "validation NLL"},
        axis="loss",
        shape=lambda axes: axes.set_ylim(bottom=min(0.0, axes.dataLim.ymin)),
    ),
    Curves(
        title="Accuracy",
        meaning="On the training images as they were augmented, while the weights still moved, and on the validation "
        "images at the end of epochs.",
        lines={"accuracy": "training", "val_accuracy": "validation"},
        axis="accuracy",
        shape=lambda axes: axes.set_ylim(top=1.005),
    ),
    Curves(
        title="Norm of the logits",
        meaning="The mean length of the logits of the validation images. Where it grows without end, so does the "
        "confidence, in wrong answers as in right ones.",
        lines={"val_logit_norm": "validation"},
        axis="mean norm",
        shape=lambda axes: axes.set_ylim(bottom=0.0),
    ),
    Curves(
        title="Learning rate",
        meaning="Of the last step of each epoch.",
        lines={"lr": "learning rate"},
        axis="learning rate",
        shape=lambda axes: axes.set_ylim(bottom=0.0),
    ),
)


def training_figures(history: History) -> str:
    """Return the HTML of the figures that the log of a run, `history`, has the values for."""
    drawn = []
    for curves in TRAINING_CURVES:
        if svg := training_figure(history, curves):
            drawn.append(figure(svg, title=curves.title, meaning=curves.meaning))
    return "".join(drawn)


def training_figure(history: History, curves: Curves) -> str:
    """Return one figure over the epochs, with a line for each member of an ensemble, or "" without values."""
    members = sorted({entry.get("stage", 0) for entry in history})
    found: dict[str, list[Points]] = {}
    for name in curves.lines:
        of_members = [points_of(history, name, stage=stage) for stage in members]
        if kept := [points for points in of_members if points[0]]:
            found[name] = kept
    if not found:
        return ""
    with drawing(f"training-{curves.title}") as (canvas, axes):
        for name, members_points in found.items():
            for index, (epochs, values) in enumerate(members_points):
                axes.plot(
                    epochs,
                    values,
                    color=SERIES[name.startswith("val_")],
                    label=curves.lines[name] if index == 0 else None,
                    alpha=1.0 if len(members_points) == 1 else 0.7,
                    marker="." if len(epochs) <= MOST_DOTS else "",
                    markersize=5,
                )
        axes.set_xlim(0, 1.02 * max(entry["epoch"] + 1 for entry in history))
        curves.shape(axes)
        axes.locator_params(axis="x", integer=True)
        if len(found) > 1:
            legend_above(axes, columns=2)
        finish(axes, x="epoch", y=curves.axis)
        return to_svg(canvas, label=f"{curves.title} over the epochs")


def points_of(history: History, name: str, *, stage: int) -> Points:
    """Return epochs, counted from 1, and finite values of one line of the log."""
    found = [
        (int(entry["epoch"]) + 1, float(entry[name]))
        for entry in history
        if entry.get("stage", 0) == stage
        and isinstance(entry.get(name), int | float)
        and math.isfinite(entry[name])
    ]
    return [epoch for epoch, _ in found], [value for _, value in found]
