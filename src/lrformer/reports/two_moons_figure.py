"""Heat maps of two moons side by side: what each method says is probable, and how sure it is of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from lrformer.core import ConfigError
from lrformer.reports.uncertainty_map import COLOR_MAP, POINT_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_WIDTH, PANEL_HEIGHT = 2.9, 2.75
DPI = 120


@dataclass(frozen=True, kw_only=True, eq=False)
class MoonsPanel:
    """What is drawn of one method: two maps, the lowest row first, and a caption with its figures."""

    title: str
    score: str
    caption: str
    uncertainty: Float[np.ndarray, "rows columns"]
    probability: Float[np.ndarray, "rows columns"]


def draw_two_moons(
    panels: Sequence[MoonsPanel],
    points: Float[np.ndarray, "n 2"],
    labels: Int[np.ndarray, " n"],
    *,
    extent: tuple[float, float, float, float],
    columns: int = 4,
    save: tuple[Path, ...] = (),
) -> "Figure":
    """Return a figure with two panels for each method: probability above, uncertainty below.

    Yellow is sure and blue is unsure, as in the paper; each map has its own scale, from the least
    uncertain point of its grid to the most.

    Args:
        points: the training points, drawn on top: orange is class 0, blue class 1.
        columns: methods side by side; more go on below.
        save: files to write; their suffix says the format.
    """
    if not panels:
        raise ConfigError("panels is empty; there is nothing to draw.")
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    bands = -(-len(panels) // columns)
    size = (columns * PANEL_WIDTH + 0.5, bands * 2 * PANEL_HEIGHT)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(2 * bands, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, panel in enumerate(panels):
        band, column = divmod(number, columns)
        upper, lower = grid[2 * band][column], grid[2 * band + 1][column]
        for axes in (upper, lower):
            axes.set_axis_on()
            axes.set_xticks([])
            axes.set_yticks([])
        _draw_map(upper, panel.probability, extent, cmap=_class_colors(), vmin=0.0, vmax=1.0)
        _draw_map(lower, shown_uncertainty(panel), extent, cmap=COLOR_MAP)
        for axes in (upper, lower):
            _draw_points(axes, points, labels)
        upper.set_title(panel.title, fontsize=13, fontweight="bold")
        lower.set_xlabel(panel.caption, fontsize=10)
        if column == 0:
            upper.set_ylabel("probability", fontsize=11)
            # The colors are the paper's, and yellow is the lower end of what the panel shows.
            lower.set_ylabel("uncertainty\nyellow: sure, blue: unsure", fontsize=11)
    for path in save:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI, metadata=_without_date(path))
    return figure


def shown_uncertainty(panel: MoonsPanel) -> Float[np.ndarray, "rows columns"]:
    """Return the uncertainty as it is colored; the order of the points is never changed.

    A variance v of the logits has no end, and grows with the square of the distance: it is drawn as
    v / (1 + v), which is a half where the logit is uncertain by one. DUQ's distance is drawn as 1 - kernel.
    """
    if panel.score == "variance":
        return panel.uncertainty / (1 + panel.uncertainty)
    if panel.score == "kernel_distance":
        return 1 - np.exp(-panel.uncertainty)
    return panel.uncertainty


def _draw_map(axes: "Axes", values: np.ndarray, extent: Any, **colors: Any) -> None:
    axes.imshow(
        values, extent=extent, origin="lower", aspect="auto", interpolation="bilinear", **colors
    )
    axes.set(xlim=extent[:2], ylim=extent[2:])


def _draw_points(axes: "Axes", points: np.ndarray, labels: np.ndarray) -> None:
    for label, color in enumerate(POINT_COLORS[:2]):
        chosen = points[labels == label]
        # Rasterized: thousands of circles would make an SVG of many megabytes.
        axes.scatter(
            *chosen.T, s=5, color=color, edgecolors="#222222", linewidths=0.2, rasterized=True
        )


def _class_colors() -> Any:
    """Return the colors from class 0 to class 1, white where both are as probable."""
    from matplotlib.colors import LinearSegmentedColormap

    first, second = POINT_COLORS[:2]
    return LinearSegmentedColormap.from_list("classes", [first, "white", second])


def _without_date(path: Path) -> dict[str, Any]:
    """Return metadata that make the same picture the same file."""
    return {"Date": None} if path.suffix == ".svg" else {"Software": None}
