"""Scores as tables of the page."""

from collections.abc import Iterable, Sequence
from html import escape

from lrformer.evaluation import Metric, Scores
from lrformer.evaluation.text_table import DETECTION, of_default_score
from lrformer.evaluation.words import (
    ACCEPTED,
    SCORE_WORDS,
    title_with_arrow,
    words_of,
    write_interval,
    write_value,
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> str:
    """Return an HTML table that scrolls by itself where the page is narrower; cells are HTML already."""

    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="number"' if column >= numbers_from else ""
        return f"<{tag}{kind}>{text}</{tag}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(header))
    body = "".join(
        "<tr>" + "".join(cell("td", column, text) for column, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def metric_cell(metric: Metric | None) -> str:
    """Return a value with its interval in small type below; a dash where it was not measured."""
    if metric is None:
        return "-"
    interval = write_interval(metric.name, metric.low, metric.high)
    small = f"<small>{interval}</small>" if interval else ""
    return f"<span>{write_value(metric.name, metric.value)}</span>{small}"


def known_table(scores: Scores) -> str:
    """Return the metrics of the probabilities on the test set, one a row, with their meaning; last what is accepted."""
    rows = []
    metrics = scores.select(dataset=scores.test_set)
    if accepted := of_default_score(scores, scores.test_set).get(ACCEPTED):
        metrics[ACCEPTED] = accepted
    for name, metric in metrics.items():
        meaning = escape(words_of(name).meaning)
        title = f'<strong>{title_with_arrow(name)}</strong><small class="meaning">{meaning}</small>'
        rows.append((title, metric_cell(metric)))
    return f'<div class="narrow">{table(("metric", "value and interval"), rows)}</div>'


def score_table(scores: Scores, *, dataset: str) -> str:
    """Return the metrics that rank by a score on one set, one row for each score."""
    chosen = [scores.select(dataset=dataset, score=score) for score in scores.given_scores]
    # The threshold is of one score alone.
    names = list(dict.fromkeys(name for metrics in chosen for name in metrics if name != ACCEPTED))
    header = ["score", *map(_head, names)]
    rows = []
    for score, metrics in zip(scores.given_scores, chosen, strict=True):
        mark = " <em>default</em>" if score == scores.default_score else ""
        about = escape(SCORE_WORDS.get(score, ""))
        title = f'<strong>{escape(score)}</strong>{mark}<small class="meaning">{about}</small>'
        rows.append((title, *(metric_cell(metrics.get(name)) for name in names)))
    return table(header, rows)


def ood_table(scores: Scores, *, role: str = "ood") -> str:
    """Return the unknown sets side by side: detection by the default score, and how sure the model is of them.

    Args:
        role: `ood`, or `made` for those that were made.
    """
    columns = (*DETECTION, ACCEPTED, "overconfidence_rate", "overconfidence_mean_confidence")
    return _set_table(scores, role, columns)


def corrupted_table(scores: Scores) -> str:
    """Return the corrupted sets, their mean first."""
    columns = (
        "accuracy",
        "nll",
        "ece_equal_width",
        "overconfidence_rate",
        "aurc",
        "auroc",
        ACCEPTED,
    )
    return _set_table(scores, "mean", columns) + (
        "<p>AUROC: how often a corrupted image looks less certain than a clean one.</p><details><summary>Every corrupted set</summary>"
        f"{_set_table(scores, 'corrupted', columns)}</details>"
    )


def _set_table(scores: Scores, role: str, columns: Sequence[str]) -> str:
    rows = []
    found = {entry.name: of_default_score(scores, entry.name) for entry in scores.of_role(role)}
    if not any(ACCEPTED in metrics for metrics in found.values()):
        columns = [name for name in columns if name != ACCEPTED]
    for entry in scores.of_role(role):
        metrics = found[entry.name]
        about = f'<small class="meaning">{entry.num_samples:,} samples</small>'
        title = f"<strong>{escape(entry.name)}</strong>{about}"
        rows.append((title, *(metric_cell(metrics.get(name)) for name in columns)))
    return table(["set", *map(_head, columns)], rows)


def _head(name: str) -> str:
    """Return the title of a metric that says what it is where a pointer rests on it."""
    return f'<span title="{escape(words_of(name).meaning, quote=True)}">{title_with_arrow(name)}</span>'
