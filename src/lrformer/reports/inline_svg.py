"""Figures that live inside the page: SVG text whose colors are the page's own, in light and in dark."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Drawn in colors that nothing else uses; each becomes a variable of the page's style sheet.
INK, FAINT, PAPER = "#010001", "#010002", "#010003"
SERIES = tuple(f"#01010{number}" for number in range(7))
_VARIABLES = {INK: "--ink", FAINT: "--faint", PAPER: "--paper"} | {
    color: f"--series-{number}" for number, color in enumerate(SERIES)
}
WIDTH, HEIGHT = 4.6, 3.3

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "savefig.transparent": True,
    # Names of sets and scores are text, also with a dollar in them.
    "text.parse_math": False,
}


@contextmanager
def drawing(name: str, *, num_rows: int = 1, **layout: Any) -> Iterator[tuple["Figure", Any]]:
    """Give a figure with its axes, in the style of the page; `name` keeps the ids of two figures apart."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {**_STYLE, "svg.hashsalt": name}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        yield figure, figure.subplots(num_rows, **layout)


def to_svg(figure: "Figure", *, label: str) -> str:
    """Return the figure as an SVG element with a label for those who cannot see it; call it while drawing."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # The page gives the width; the height follows from the viewBox.
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    # Nothing refers to the groups, and every figure of a page numbers them from one.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    spoken = escape(label, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{spoken}"', 1).strip()


def finish(axes: "Axes", *, x: str, y: str) -> None:
    """Label the axes and lay a faint grid behind what is drawn."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, color=FAINT, alpha=0.35, linewidth=0.6)
    axes.set_axisbelow(True)


def legend_above(axes: "Axes", *, columns: int, title: str | None = None) -> None:
    """Put the legend above the axes, where it covers nothing that is drawn."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        title=title,
        alignment="left",
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.4,
    )
