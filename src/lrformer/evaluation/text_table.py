"""The figures that a person looks at first, in rows of plain text: for the terminal, and for `print(scores)`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lrformer.evaluation.sentences import operating_point, worst
from lrformer.evaluation.words import ACCEPTED, title_with_arrow, write_interval, write_value

if TYPE_CHECKING:
    from lrformer.evaluation.scores import Scores
    from lrformer.evaluation.seeds import SeedScores

# The rest is in the same record.
SUMMARY = ("accuracy", "nll", "brier", "ece_equal_width", "overconfidence_rate", "aurc", ACCEPTED)
DETECTION = ("auroc", "aupr_ood_positive", "aupr_id_positive", "fpr95_ood_positive", "fpr95_id_positive")  # fmt: skip
# Sets on which no answer is right.
UNKNOWN_ROLES = ("ood", "made")

Row = tuple[str, str, str, str]


def of_default_score(scores: "Scores | SeedScores", dataset: str) -> dict[str, Any]:
    """Return the metrics of one set: of the probabilities, and of the default score."""
    ranked = scores.select(dataset=dataset, score=scores.default_score)
    return {**ranked, **scores.select(dataset=dataset)}


def text_rows(scores: "Scores | SeedScores") -> list[Row]:
    """Return set, metric, value and interval of what a person looks at first.

    Of corrupted sets, which are many, it is the mean alone.
    """
    rows = []
    for entry in scores.sets:
        if entry.role == "corrupted":
            continue
        metrics = of_default_score(scores, entry.name)
        is_unknown = entry.role in UNKNOWN_ROLES
        for name in (*DETECTION, "overconfidence_rate", ACCEPTED) if is_unknown else SUMMARY:
            if metric := metrics.get(name):
                value = write_value(name, metric.value)
                interval = write_interval(name, metric.low, metric.high)
                rows.append((entry.name, title_with_arrow(name), value, interval))
    return rows


def text_title(scores: "Scores") -> str:
    """Return what stands above the table."""
    return f"{scores.test_set}; uncertainty by {scores.default_score}"


def text_lines(scores: "Scores") -> list[str]:
    """Return what stands below the table."""
    return [line for line in (operating_point(scores), worst(scores)) if line is not None]


def text_table(scores: "Scores") -> str:
    """Return the table with its title and what stands below it, in plain columns."""
    rows: list[Sequence[str]] = [("set", "metric", "value", "interval")]
    before = None
    for dataset, *cells in text_rows(scores):
        rows.append(("" if dataset == before else dataset, *cells))
        before = dataset
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
        for row in rows
    ]
    return "\n".join([text_title(scores), *lines, *text_lines(scores)])
