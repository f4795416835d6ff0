"""What the validation split says of the whole training: a row at its best epoch, and at the end."""

from collections.abc import Mapping, Sequence

from glance_table import table_of
from lrformer.metrics import seed_interval
from lrformer.recipes.table import describe_variant
from lrformer.recipes.table_record import TableRecord, TableRun
from lrformer.recipes.table_summary import summarize, variants

FIGURES = {"nll": "NLL", "ece": "ECE", "accuracy": "accuracy"}
# One row has nothing to be compared with.
FEWEST_ROWS = 2


def best_epoch_table(ablation: TableRecord | None) -> str:
    """Return every row of the whole runs at the epoch with its lowest validation NLL, and after the last."""
    parts = []
    for variant in variants(ablation) if ablation is not None else ():
        table = table_of(ablation, variant)
        rows = {
            row.row.name: (row.row.title, row.runs)
            for row in summarize(table, ablation, variant=variant)
            if any(run.curve for run in row.runs)
        }
        if "shortened_from" not in variant and len(rows) >= FEWEST_ROWS:
            words = describe_variant(variant)
            lines = _lines(rows, baseline=table.baseline)
            parts.append("\n".join([f"**{words[0].upper()}{words[1:]}.**", "", *lines]))
    return "\n\n".join(parts) or "Not measured yet."


def _lines(rows: Mapping[str, tuple[str, Sequence[TableRun]]], *, baseline: str) -> list[str]:
    at_best, at_end = (
        " | ".join(f"{title}{place}" for title in FIGURES.values()) for place in ("", " at the end")
    )
    plain = rows[baseline][0] if baseline in rows else baseline
    lines = [
        f"| | seeds | epoch | {at_best} | NLL against {plain} | {at_end} |",
        "|---" * (2 * len(FIGURES) + 4) + "|",
    ]
    best = {name: {run.seed: _best(run) for run in runs} for name, (_, runs) in rows.items()}
    for name, (title, runs) in rows.items():
        found = best[name].values()
        cells = [
            f"{sum(point['epoch'] for point in found) / len(found):.0f}",
            *(_over([point[key] for point in found]) for key in FIGURES),
            "" if name == baseline else _against(best[name], best.get(baseline, {})),
            *(_over([run.curve[key][-1] for run in runs]) for key in FIGURES),
        ]
        lines.append(f"| {title} | {len(runs)} | {' | '.join(cells)} |")
    return lines


def _best(run: TableRun) -> dict[str, float]:
    """Return the figures of the epoch with the lowest NLL."""
    losses = run.curve["nll"]
    index = min(range(len(losses)), key=losses.__getitem__)
    return {key: values[index] for key, values in run.curve.items()}


def _against(ours: Mapping[int, dict[str, float]], plain: Mapping[int, dict[str, float]]) -> str:
    """Return the mean difference in NLL over common seeds, and whether its interval leaves out zero."""
    differences = [ours[seed]["nll"] - plain[seed]["nll"] for seed in ours if seed in plain]
    if not differences:
        return ""
    over = seed_interval(differences)
    if over.low is None or over.high is None or over.low <= 0 <= over.high:
        return f"{over.mean:+.3f}"
    return f"**{over.mean:+.3f} {'better' if over.mean < 0 else 'worse'}**"


def _over(values: Sequence[float]) -> str:
    """Return the mean over seeds with half its interval, or the one value."""
    over = seed_interval(values)
    half = "" if over.low is None or over.high is None else f" ± {(over.high - over.low) / 2:.3f}"
    return f"{over.mean:.3f}{half}"
