"""The picture of a Lipschitz report: what is proved against what is seen, over depth."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from lrformer.core import ConfigError
from lrformer.evaluation.bounds_report import BoundsReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SOUND, _LOCAL, _MEASURED, _GAP = "#b2182b", "#e08214", "#2166ac", "0.6"
# Above this many decades ticks are powers of ten; below, plain numbers.
_FEW_DECADES = 3.0


def plot_bounds(report: BoundsReport, path: str | Path | None = None) -> "Figure":
    """Return a figure of sound bounds and measured constants from the input to each block and the logits.

    The vertical axis is logarithmic. Where no constant exists the line of the bound ends.

    Args:
        path: where to save it as well; the suffix chooses the format.
    """
    from matplotlib.figure import Figure

    if not report.depth:
        raise ConfigError(f"the report of {report.model} has no blocks to draw.")
    names = [*(_short(point.name) for point in report.depth), "logits"]
    places = range(len(names))
    sound = [*(point.log10_sound for point in report.depth), report.chain.log10]
    lines = [("sound, for all inputs", "o-", _SOUND, sound)]
    if report.local is not None and report.certificate is None:
        local = [*(point.local for point in report.depth), max(report.local.constants)]
        label = f"sound, within {report.local.radius:.3g} of the inputs"
        lines.append((label, "D-", _LOCAL, _log10(local)))
    if report.measured:
        measured = [*(point.measured for point in report.depth), max(report.measured)]
        lines.append(("measured (lower bound)", "s-", _MEASURED, _log10(measured)))
    figure = Figure(figsize=(6.4, 4.0), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    for label, style, color, values in lines:
        finite = [value if math.isfinite(value) else math.nan for value in values]
        axes.plot(places, finite, style, color=color, label=label, markersize=5)
    missing = next((i for i, value in enumerate(sound) if not math.isfinite(value)), None)
    if missing is not None:
        label = "no constant for all inputs from here on"
        axes.axvline(missing, color=_GAP, linestyle=":", label=label)
    is_crowded = len(names) > 8
    axes.set_xticks(
        list(places),
        names,
        rotation=45 if is_crowded else 0,
        ha="right" if is_crowded else "center",
    )
    axes.tick_params(labelsize=8)
    seen = [v for *_, values in lines for v in values if math.isfinite(v)]
    span = max(seen) - min(seen) if seen else 0.0
    axes.margins(y=0.12)
    if span <= _FEW_DECADES:
        low, high = axes.get_ylim()
        decades = range(math.floor(low), math.ceil(high) + 1)
        ticks = [k + math.log10(digit) for k in decades for digit in (1, 2, 5)]
        axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter(lambda value, _: _tick(value, span))
    axes.set_ylabel("Lipschitz constant from the input (L2)", fontsize=9)
    axes.set_title(f"{report.model}: bound and measurement over depth", fontsize=10)
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    if path is not None:
        figure.savefig(Path(path))
    return figure


def _short(name: str) -> str:
    """Return the last part of a module's name with its number: `block 3` for `vit.layers.3`."""
    last = name.rsplit(".", 1)[-1]
    return f"block {last}" if last.isdigit() else name


def _log10(values: list[float | None]) -> list[float]:
    return [math.log10(v) if v is not None and 0 < v < math.inf else math.nan for v in values]


def _tick(log10: float, span: float) -> str:
    if span > _FEW_DECADES:
        return f"$10^{{{log10:.0f}}}$" if math.isclose(log10, round(log10), abs_tol=1e-9) else ""
    return f"{10**log10:.3g}"
