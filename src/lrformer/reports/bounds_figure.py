"""The picture of a Lipschitz report: what is proved against what is seen, over depth."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from lrformer.core import ConfigError
from lrformer.evaluation.bounds_report import BoundsReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_bounds(report: BoundsReport, path: str | Path | None = None) -> "Figure":
    """Return a figure of sound bounds and measured constants from the input up to each block.

    Both axes of the gap matter: the vertical one is logarithmic. Where no constant exists the line
    of the bound ends.

    Args:
        path: where to save it as well; the suffix chooses the format.
    """
    from matplotlib.figure import Figure

    if not report.depth:
        raise ConfigError(f"the report of {report.model} has no blocks to draw.")
    names = [point.name for point in report.depth]
    places = range(len(names))
    sound = [p.log10_sound if math.isfinite(p.log10_sound) else math.nan for p in report.depth]
    measured = [math.log10(p.measured) if p.measured else math.nan for p in report.depth]
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(places, sound, "o-", color="#b2182b", label="sound upper bound")
    if not all(math.isnan(value) for value in measured):
        axes.plot(places, measured, "s-", color="#2166ac", label="measured (lower bound)")
    if any(not math.isfinite(point.log10_sound) for point in report.depth):
        first = next(i for i, p in enumerate(report.depth) if not math.isfinite(p.log10_sound))
        axes.axvline(first, color="0.6", linestyle=":", label="no constant exists from here on")
    axes.set_xticks(list(places), names, rotation=45, ha="right", fontsize=7)
    axes.set_ylabel("log10 of the constant from the input")
    axes.set_title(f"Lipschitz constants of {report.model} over depth", fontsize=10)
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    if path is not None:
        figure.savefig(Path(path))
    return figure
