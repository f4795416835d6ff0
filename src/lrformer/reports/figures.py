"""The figures of the report, each as a self-contained SVG element."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from lrformer.evaluation import Predictions, Scores
from lrformer.metrics import auroc, reliability_bins, risk_coverage_curve, roc_curve
from lrformer.metrics.calibration import DEFAULT_NUM_BINS
from lrformer.reports.inline_svg import FAINT, INK, SERIES, drawing, finish, legend_above, to_svg

MOST_POINTS = 400
HEIGHT_OF_A_NAME = 0.18
LINE_STYLES = ("-", "--", ":", "-.")
NUM_HISTOGRAM_BINS = 40
# Among the first few samples one mistake is a rate of 100%, which would flatten all the rest of the curve.
LEAST_COVERAGE = 0.1


def reliability_figure(predictions: Predictions, *, num_bins: int = DEFAULT_NUM_BINS) -> str:
    """Return the reliability diagram: accuracy against confidence, with the share of samples below."""
    assert predictions.labels is not None
    bins = reliability_bins(predictions.probs, predictions.labels, num_bins=num_bins)
    filled = [number for number, count in enumerate(bins.counts) if count]
    edges = np.asarray(bins.edges)
    centers, width = (edges[1:] + edges[:-1]) / 2, 1 / num_bins
    accuracy = np.array([bins.accuracy[number] for number in filled], dtype=float)
    confidence = np.array([bins.confidence[number] for number in filled], dtype=float)
    with drawing("reliability", num_rows=2, sharex=True, height_ratios=(3, 1)) as (figure, axes):
        upper, lower = axes
        bars = {"width": 0.92 * width, "x": centers[filled]}
        sound = np.minimum(accuracy, confidence)
        upper.bar(height=sound, color=SERIES[0], label="accuracy", **bars)
        for gap, color, label in (
            (confidence - accuracy, SERIES[1], "too sure"),
            (accuracy - confidence, SERIES[2], "too modest"),
        ):
            above = np.maximum(gap, 0)
            upper.bar(height=above, bottom=sound, color=color, alpha=0.6, label=label, **bars)
        upper.plot([0, 1], [0, 1], "--", color=INK, linewidth=1, label="perfect")
        upper.set(xlim=(0, 1), ylim=(0, 1))
        legend_above(upper, columns=4)
        finish(upper, x="", y="accuracy")
        lower.bar(centers, np.asarray(bins.counts) / len(predictions), 0.92 * width, color=FAINT)
        finish(lower, x="confidence", y="share")
        return to_svg(figure, label="Reliability diagram")


def histogram_figure(inside: Predictions, outside: Predictions, *, name: str, score: str) -> str:
    """Return the histograms of one score on the known and on an unknown set."""
    known, unknown = inside.uncertainty(score), outside.uncertainty(score)
    everything = np.concatenate([known, unknown])
    everything = everything[np.isfinite(everything)]
    # The far tail of an unbounded score would squeeze all the rest into one bin.
    low, high = np.quantile(everything, [0.0, 0.995]) if len(everything) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1, NUM_HISTOGRAM_BINS + 1)
    with drawing(f"histogram-{name}") as (figure, axes):
        for values, color, label in ((known, SERIES[0], inside.name), (unknown, SERIES[1], name)):
            clipped = np.clip(values, edges[0], edges[-1])
            counts, _ = np.histogram(clipped, edges)
            share = counts / len(values)
            axes.stairs(share, edges, fill=True, color=color, alpha=0.45)
            axes.stairs(share, edges, color=color, label=_short(label))
        legend_above(axes, columns=2)
        finish(axes, x=f"{score} (more uncertain →)", y="share of the set")
        return to_svg(figure, label=f"Histograms of {score} on known and unknown data")


def roc_figure(inside: Predictions, ood: Mapping[str, Predictions], *, score: str) -> str:
    """Return the ROC curves of one score, one line for each unknown set."""
    with drawing("roc") as (figure, axes):
        for number, (name, outside) in enumerate(ood.items()):
            color = SERIES[number % len(SERIES)]
            style = LINE_STYLES[number // len(SERIES) % len(LINE_STYLES)]
            known, unknown = inside.uncertainty(score), outside.uncertainty(score)
            curve = roc_curve(known, unknown)
            fpr, tpr = thin(np.asarray(curve.fpr), np.asarray(curve.tpr))
            label = f"{_short(name)} ({auroc(known, unknown):.3f})"
            axes.plot(fpr, tpr, style, color=color, label=label)
        axes.plot([0, 1], [0, 1], "--", color=INK, linewidth=1)
        axes.set(xlim=(0, 1), ylim=(0, 1.01))
        # Curves above chance and below it leave no corner free for the names.
        figure.set_figheight(figure.get_figheight() + HEIGHT_OF_A_NAME * (len(ood) + 1))
        legend_above(axes, columns=1, title="set (AUROC)")
        finish(axes, x="known images flagged", y="unknown images caught")
        return to_svg(figure, label="ROC curves")


def risk_coverage_figure(predictions: Predictions) -> str:
    """Return the risk-coverage curves of the test set, one line for each score."""
    assert predictions.labels is not None
    with drawing("risk-coverage") as (figure, axes):
        names = list(predictions.scores)
        # The default score is drawn last, so that it lies on top of those that coincide with it.
        names.sort(key=lambda name: name == predictions.default_score)
        colors = dict(zip(predictions.scores, _cycle(len(names)), strict=True))
        highest = 0.0
        for name in names:
            curve = risk_coverage_curve(
                predictions.scores[name], predictions.probs, predictions.labels
            )
            coverage, risk = thin(np.asarray(curve.coverage), np.asarray(curve.risk))
            axes.plot(coverage, risk, color=colors[name], label=_short(name))
            highest = max([highest, *risk[coverage >= LEAST_COVERAGE]])
        axes.set(xlim=(0, 1.01), ylim=(0, 1.1 * max(highest, 0.01)))
        legend_above(axes, columns=3)
        finish(axes, x="share of the images answered", y="error rate among them")
        return to_svg(figure, label="Risk-coverage curves")


def severity_figure(scores: Scores, by_severity: Mapping[int, Sequence[str]]) -> str:
    """Return accuracy and mean confidence as corruption grows, means over the kinds of one severity."""
    severities = [0, *sorted(by_severity)]
    sets = {0: [scores.test_set], **by_severity}
    with drawing("severity") as (figure, axes):
        for metric, color, label in (
            ("accuracy", SERIES[0], "accuracy"),
            ("overconfidence_mean_confidence", SERIES[1], "mean confidence"),
        ):
            means = [
                np.mean([scores(metric, dataset=name) for name in sets[severity]])
                for severity in severities
            ]
            axes.plot(severities, means, "o-", color=color, label=label)
        axes.set_ylim(0, 1.02)
        axes.set_xticks(severities, ["clean", *map(str, severities[1:])])
        legend_above(axes, columns=2)
        finish(axes, x="severity of the corruption", y="mean over the kinds")
        return to_svg(figure, label="Accuracy and confidence under corruption")


def thin(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], *, most: int = MOST_POINTS
) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` points of a curve, evenly spread along it, with both ends.

    Evenly along x and y together: a ROC curve that rises steeply would lose its rise if x alone counted.
    """
    if len(x) <= most:
        return x, y
    length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    wanted = np.linspace(0, length[-1], most)
    rows = np.unique(np.concatenate([[0], np.searchsorted(length, wanted), [len(x) - 1]]))
    rows = rows[rows < len(x)]
    return x[rows], y[rows]


def _cycle(number: int) -> list[str]:
    """Return so many colors; from the eighth on they come again."""
    return [SERIES[i % len(SERIES)] for i in range(number)]


def _short(name: str, *, most: int = 24) -> str:
    # Names that come together often begin alike.
    half = most // 2
    shown = name if len(name) <= most else f"{name[: half - 1]}…{name[-(most - half) :]}"
    # Matplotlib leaves out of a legend what begins with an underscore; after a space of no width it does not.
    return f"\u200b{shown}" if shown.startswith("_") else shown
