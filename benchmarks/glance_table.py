"""The first tables of docs/results.md: what each part of LRFormer changes, however the transformer was trained."""

from typing import Any

from lrformer.metrics import SeedInterval, seed_interval
from lrformer.recipes import TABLES
from lrformer.recipes.table import Table
from lrformer.recipes.table_record import TableRecord
from lrformer.recipes.table_summary import Cell, SummaryRow, summarize, variants

# Two rows of the ablation that differ in one part: what it is, the row with it, the row without.
CONTRASTS = (
    ("LRFormer, whole, against the plain transformer", "lrformer", "transformer"),
    ("LRSA alone, both under a linear head", "lrformer_linear", "transformer"),
    ("LRSA alone, both under the GP head", "lrformer", "transformer_gp"),
    ("The GP head alone, both on LRSA", "lrformer", "lrformer_linear"),
    ("The GP head alone, both on plain attention", "transformer_gp", "transformer"),
)
# The four rows that have, or lack, both parts: what the two do together beyond what each does alone.
TOGETHER = "LRSA and the GP head together, beyond the sum of what each does alone"
BOTH, HEAD, ATTENTION, NEITHER = "lrformer", "transformer_gp", "lrformer_linear", "transformer"
COLUMNS = (
    *("accuracy", "nll", "nll_t", "ece", "ece_t", "auroc:svhn", "auroc:cifar100"),
    *("aupr:svhn:chosen", "aupr:cifar100:chosen"),
)
OPTIMIZERS = {"modern": "AdamW", "muon": "Muon", "paper": "SGD"}
# An interval of two seeds is too wide to tell anything.
FEWEST_SEEDS = 3


def glance_table(ablation: TableRecord | None) -> str:
    """Return a table for each part: the change that is printed, and ours in every setting with enough seeds."""
    if ablation is None:
        return "Not measured yet."
    parts = []
    for title, ours, theirs in CONTRASTS:
        shown = settings_of(ablation, ours, theirs)
        if shown:
            parts.append("\n".join(_contrast(title, [(n, r[ours], r[theirs]) for n, r in shown])))
    if together := _together(ablation):
        parts.append("\n".join(together))
    return "\n\n".join(parts) or "Not measured yet."


def settings_of(ablation: TableRecord, *names: str) -> list[tuple[str, dict[str, SummaryRow]]]:
    """Return the title and the rows of every setting in which all these rows have enough seeds, whole runs first."""
    found = []
    for variant in sorted(variants(ablation), key=lambda v: "shortened_from" in v):
        rows = {row.row.name: row for row in _rows(ablation, variant)}
        if _num_common_seeds(*(rows[name] for name in names)) >= FEWEST_SEEDS:
            title = f"{_setting(variant)}, {rows[names[0]].runs[0].config.epochs} epochs"
            found.append((title, rows))
    return found


def _contrast(title: str, pairs: list[tuple[str, SummaryRow, SummaryRow]]) -> list[str]:
    """Return the lines of one table; the printed change stands first where the paper has both rows."""
    _, ours, theirs = pairs[0]
    cells = [(ours.cell(name), theirs.cell(name)) for name in COLUMNS]
    lines = [
        f"| {title} | seeds | {' | '.join(cell.column.title for cell, _ in cells)} |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    printed = [_printed(*pair) for pair in cells]
    if any(printed):
        lines.append(f"| printed | 10 | {' | '.join(printed)} |")
    for setting, ours, theirs in pairs:
        changes = " | ".join(_said(ours.cell(name), theirs.cell(name)) for name in COLUMNS)
        lines.append(f"| {setting} | {_num_common_seeds(ours, theirs)} | {changes} |")
    return lines


def change(ours: Cell, theirs: Cell) -> SeedInterval | None:
    """Return ours minus theirs over their common seeds."""
    seeds = [seed for seed in ours.by_seed if seed in theirs.by_seed]
    return seed_interval([ours.by_seed[s] - theirs.by_seed[s] for s in seeds]) if seeds else None


def verdict(over: SeedInterval, direction: int) -> str | None:
    """Return "better" or "worse" where the interval leaves out zero; `direction` is 1 where more is better, else -1."""
    if over.low is None or over.high is None or over.low <= 0 <= over.high:
        return None
    return "better" if (over.mean > 0) == (direction > 0) else "worse"


def _together(ablation: TableRecord) -> list[str]:
    """Return the lines of the table of what the two parts do to each other."""
    lines = []
    for setting, rows in settings_of(ablation, BOTH, HEAD, ATTENTION, NEITHER):
        cells = []
        for name in COLUMNS:
            both, head, attention, neither = (
                rows[row].cell(name) for row in (BOTH, HEAD, ATTENTION, NEITHER)
            )
            seeds = [
                seed
                for seed in both.by_seed
                if all(seed in cell.by_seed for cell in (head, attention, neither))
            ]
            over = seed_interval(
                [
                    both.by_seed[s] - head.by_seed[s] - attention.by_seed[s] + neither.by_seed[s]
                    for s in seeds
                ]
            )
            cells.append(said(over, both.column.direction))
        if not lines:
            titles = " | ".join(rows[BOTH].cell(name).column.title for name in COLUMNS)
            lines = [f"| {TOGETHER} | seeds | {titles} |", "|---" * (len(COLUMNS) + 2) + "|"]
        count = _num_common_seeds(*(rows[row] for row in (BOTH, HEAD, ATTENTION, NEITHER)))
        lines.append(f"| {setting} | {count} | {' | '.join(cells)} |")
    return lines


def said(over: SeedInterval, direction: int) -> str:
    """Return a difference, in bold and with what it is where its interval leaves out zero."""
    word = verdict(over, direction)
    return _signed(over.mean) if word is None else f"**{_signed(over.mean)} {word}**"


def _said(ours: Cell, theirs: Cell) -> str:
    over = change(ours, theirs)
    return "" if over is None else said(over, ours.column.direction)


def _printed(ours: Cell, theirs: Cell) -> str:
    if ours.printed is None or theirs.printed is None:
        return ""
    return _signed(ours.printed.value - theirs.printed.value)


def _signed(value: float) -> str:
    """Return three digits with a sign; what is rounded away has none that says anything."""
    return f"{round(value, 3) + 0:+.3f}"


def _setting(variant: dict[str, Any]) -> str:
    decay = f", weight decay {variant['weight_decay']:g}" if "weight_decay" in variant else ""
    return f"{OPTIMIZERS[variant['optimizer']]}{decay}, {variant['pixels']} pixels"


def table_of(record: TableRecord, variant: dict[str, Any]) -> Table:
    """Return the table of a record as it was asked for under one variant; alpha is in the titles of its rows."""
    asked = {key: variant[key] for key in ("optimizer", "pixels", "alpha") if key in variant}
    return TABLES[record.table](data=record.data, **asked)


def _rows(ablation: TableRecord, variant: dict[str, Any]) -> list[SummaryRow]:
    return summarize(table_of(ablation, variant), ablation, variant=variant)


def _num_common_seeds(*rows: SummaryRow) -> int:
    return len(set.intersection(*({run.seed for run in row.runs} for row in rows)))
