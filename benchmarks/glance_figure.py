"""docs/figures/ablation.svg and .png: what each part of LRFormer changes, from the record of the ablation.

python benchmarks/glance_figure.py
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glance_table import CONTRASTS, change, settings_of, verdict
from lrformer.recipes.table_record import TableRecord
from lrformer.recipes.table_summary import SummaryRow
from result_tables import load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = Path(__file__).parent.parent / "docs" / "figures"
# A column and how far its axis reaches to both sides of zero.
PANELS = {
    "accuracy": 0.06,
    "nll": 0.3,
    "nll_t": 0.3,
    "ece": 0.06,
    "ece_t": 0.06,
    "auroc:svhn": 0.15,
    "auroc:cifar100": 0.06,
}
COLORS = {"better": "#1b7837", "worse": "#b2182b", None: "#8c8c8c"}
ARROWS = {True: "↑", False: "↓"}
LINE_HEIGHT, WIDTH = 0.25, 13.0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A change with its interval, or a printed one, which has none; `verdict` is None where it may be nothing."""

    value: float
    interval: tuple[float, float] | None = None
    verdict: str | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """One setting under one contrast; a line without marks is the title of a contrast."""

    title: str
    marks: dict[str, Mark]


def lines_of(ablation: TableRecord) -> list[Line]:
    """Return a title, then a line for every setting, of each contrast that has enough seeds."""
    lines: list[Line] = []
    for title, ours, theirs in CONTRASTS:
        settings = settings_of(ablation, ours, theirs)
        if not settings:
            continue
        lines.append(Line(title=title, marks={}))
        pairs = [(setting, rows[ours], rows[theirs]) for setting, rows in settings]
        if printed := _printed_marks(*pairs[0][1:]):
            lines.append(Line(title="printed", marks=printed))
        lines += [Line(title=name, marks=_marks(*pair)) for name, *pair in pairs]
    return lines


def _printed_marks(ours: SummaryRow, theirs: SummaryRow) -> dict[str, Mark]:
    found = {name: (ours.cell(name).printed, theirs.cell(name).printed) for name in PANELS}
    return {name: Mark(value=a.value - b.value) for name, (a, b) in found.items() if a and b}


def _marks(ours: SummaryRow, theirs: SummaryRow) -> dict[str, Mark]:
    marks = {}
    for name in PANELS:
        over = change(ours.cell(name), theirs.cell(name))
        if over is not None and over.low is not None and over.high is not None:
            word = verdict(over, ours.cell(name).column.direction)
            marks[name] = Mark(value=over.mean, interval=(over.low, over.high), verdict=word)
    return marks


def is_higher_better(name: str) -> bool:
    """Return whether more of a column is better."""
    return name.startswith(("accuracy", "auroc"))


def fingerprint(lines: Sequence[Line]) -> str:
    """Return what a picture of these lines carries in its metadata: drawn text differs between versions of matplotlib."""
    shown = [
        (line.title, name, f"{mark.value:.4f}", [f"{end:.4f}" for end in mark.interval or ()])
        for line in lines
        for name, mark in line.marks.items()
    ]
    return f"lines {hashlib.sha256(repr(shown).encode()).hexdigest()[:16]}"


def draw(lines: Sequence[Line], titles: dict[str, str], *, save: Sequence[Path]) -> None:
    """Draw one panel for each column, with an interval for each line."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "ablation", "font.size": 8}
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDTH, LINE_HEIGHT * len(lines) + 1), layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (name, reach) in zip(panels, PANELS.items(), strict=True):
            axes.axvline(0, color="black", linewidth=0.8)
            for place, line in enumerate(lines):
                if name in line.marks:
                    _draw_mark(axes, line.marks[name], place, reach)
            axes.set(xlim=(-reach, reach), title=f"{titles[name]} {ARROWS[is_higher_better(name)]}")
            axes.set_xticks([-2 / 3 * reach, 0, 2 / 3 * reach])
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:+.2f}" if x else "0")
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(axis="y", length=0)
            axes.grid(visible=True, axis="x", alpha=0.3)
        figure.supxlabel(
            "with the part minus without it, 95% interval over three seeds; filled: significant, green better, red worse; "
            "grey: not significant; an arrow head: the interval goes on",
            fontsize=8,
        )
        panels[0].set_ylim(len(lines) - 0.4, -0.7)
        panels[0].set_yticks(range(len(lines)), [line.title for line in lines])
        for label, line in zip(panels[0].get_yticklabels(), lines, strict=True):
            label.set_fontweight("normal" if line.marks else "bold")
        for path in save:
            dropped = "Date" if path.suffix == ".svg" else "Software"
            metadata = {dropped: None, "Description": fingerprint(lines)}
            figure.savefig(path, dpi=130, metadata=metadata)


def _draw_mark(axes: "Axes", mark: Mark, place: int, reach: float) -> None:
    """Draw one interval; what lies outside of the panel ends in an arrow."""
    if mark.interval is None:
        axes.plot([mark.value], [place], "D", color="black", markersize=4, fillstyle="none")
        return
    low, high = mark.interval
    color = COLORS[mark.verdict]
    shown = [max(low, -reach), min(high, reach)]
    axes.plot(shown, [place, place], color=color, linewidth=1.6, solid_capstyle="butt")
    style = {"better": "^", "worse": "v", None: "o"}[mark.verdict]
    face = color if mark.verdict else "white"
    axes.plot([mark.value], [place], style, color=color, markerfacecolor=face, markersize=5)
    for is_outside, edge, arrow in ((low < -reach, -reach, "<"), (high > reach, reach, ">")):
        if is_outside:
            axes.plot([edge], [place], arrow, color=color, markersize=4, clip_on=False)


def main() -> None:
    """Draw the figure that docs/results.md shows."""
    ablation = load("ablation")
    assert ablation is not None
    _, rows = settings_of(ablation, *CONTRASTS[0][1:])[0]
    titles = {name: rows[CONTRASTS[0][1]].cell(name).column.title for name in PANELS}
    draw(
        lines_of(ablation), titles, save=[PICTURES / f"ablation.{kind}" for kind in ("svg", "png")]
    )


if __name__ == "__main__":
    main()
