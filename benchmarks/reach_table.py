"""The table of docs/results.md on the best single model: which rows reach the paper's five figures, and what chose among them."""

from statistics import fmean
from typing import Any

from lrformer.recipes import TABLES
from lrformer.recipes.table import describe_variant
from lrformer.recipes.table_record import TableRecord
from lrformer.recipes.table_summary import SummaryRow, summarize, variants

GOAL = "lrformer"
FIGURES = ("accuracy", "nll", "ece")
SETS = ("aupr:svhn", "aupr:cifar100")


def reach_table(main: TableRecord | None) -> str:
    """Return, for every row and model, how far each figure is from the one that the paper prints for LRFormer."""
    if main is None or not main.runs:
        return "Not measured yet."
    table = TABLES[main.table](data=main.data)
    printed = {name: figure.value for name, figure in table.row(GOAL).printed.items()}
    chosen = [f"{name}:chosen" for name in SETS]
    titles = {cell.column.name: cell.column.title for cell in summarize(table, main)[0].cells}
    names = (*FIGURES, *SETS, *chosen)
    lines = [
        f"| | {' | '.join(titles[name] for name in names)} | misses by entropy | by chosen score | validation NLL | made outliers |",
        "|---" * (len(names) + 5) + "|",
    ]
    for variant in variants(main):
        rows = [row for row in summarize(table, main, variant=variant) if row.runs]
        for row in rows:
            gains = {name: _gain(row, name, printed) for name in names}
            missed = [
                ", ".join(titles[n].partition(" by ")[0] for n in (*FIGURES, *sets) if gains[n] < 0)
                or "none"
                for sets in (SETS, chosen)
            ]
            lines.append(
                f"| {_title(row, variant)} | {' | '.join(f'{gain:+.4f}' for gain in gains.values())} | "
                f"{' | '.join(missed)} | {_validation_loss(row):.4f} | {_made(row):.3f} |"
            )
    return "\n".join(lines)


def _gain(row: SummaryRow, name: str, printed: dict[str, float]) -> float:
    """Return by how much ours is better than the printed figure; below zero it is worse."""
    cell = row.cell(name)
    assert cell.ours is not None
    goal = printed[name.removesuffix(":chosen")]
    return cell.column.direction * (cell.ours.mean - goal) + 0.0


def _title(row: SummaryRow, variant: dict[str, Any]) -> str:
    is_looked = "model" in variant
    return f"{row.row.title} ({describe_variant(variant)})" if is_looked else row.row.title


def _validation_loss(row: SummaryRow) -> float:
    return fmean(run.training["validation_calibrated"]["nll"] for run in row.runs)


def _made(row: SummaryRow) -> float:
    """Return the AUPR of the chosen score on made outliers, over their kinds and the seeds."""
    return fmean(fmean(run.outliers[row.score].values()) for run in row.runs)
