"""The tables of docs/results.md, docs/runs.md, docs/recipes.md and README.md that are made of the records of `lrformer reproduce`.

A record that is not there yet gives a line that says so, and the command that makes it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from choice_tables import decay_table, norm_table, search_table, temperature_table
from curve_tables import best_epoch_table
from glance_table import glance_table, table_of
from lrformer.recipes import TABLES, Table
from lrformer.recipes.matched_accuracy import match_accuracy
from lrformer.recipes.table import SET_TITLES, describe_variant
from lrformer.recipes.table_record import TableRecord, TableRun, read_table_record
from lrformer.recipes.table_summary import Cell, SummaryRow, summarize, variants
from overconfidence_table import overconfidence_table
from plan_tables import left_table, plan_table
from reach_table import reach_table

RESULTS = Path(__file__).parent / "results"
DATA = "cifar10"
NAMES = ("ablation", "attentions", "alpha", "main", "references")
PRINTED_TITLES = {"main": {}, "references": {"deterministic": "WRN-28-10", "sngp": "SNGP"}}
README_COLUMNS = ("accuracy", "nll", "ece", "aupr:svhn", "aupr:cifar100")
README_CHOSEN = ("aupr:svhn:chosen", "aupr:cifar100:chosen")
# The record of the weights of `lrformer_gp_variance` with one temperature for all inputs.
TEMPERATURE = "-temperature"
# The record of a small model with norms before and after its parts.
NORMS = "-norms"
# What the two recipes make, each behind its plain twin; docs/results.md has every row.
README_ROWS = {
    "main": ("transformer", "lrformer", "transformer_gp_variance", "lrformer_gp_variance"),
    "references": ("deterministic", "sngp"),
}


def load(name: str, *, part: str = "") -> TableRecord | None:
    """Return the record of a table, or None where it is not made yet; `part` names one that stands beside it."""
    path = RESULTS / f"{DATA}-{name}{part}.json"
    if not path.exists():
        return None
    return read_table_record(path, table=name, data=DATA)


def section(name: str) -> str:
    """Return one table beside the paper's: of the runs that were not shortened, where there are any."""
    found = _shown(name)
    if found is None:
        return (
            f"Not measured yet. `lrformer reproduce {name}` writes "
            f"`benchmarks/results/{DATA}-{name}.json`, and this place is filled from it."
        )
    record, main, _ = found
    return "\n\n".join(_variant(record, variant) for variant in main)


def details(name: str) -> str:
    """Return what `section` leaves out: the other settings, and for all of them what is significant."""
    found = _shown(name)
    if found is None:
        return "Not measured yet."
    record, main, others = found
    parts = [_variant(record, variant) for variant in others]
    for variant in (*main, *others):
        table = table_of(record, variant)
        rows = [row for row in summarize(table, record, variant=variant) if row.runs]
        said = [sentences(table, rows), scores_table(rows) if table.name == "main" else ""]
        if any(said):
            parts += [f"**{_title(variant)}: row by row.**", *(text for text in said if text)]
    return "\n\n".join(parts) or "Nothing more."


def _shown(name: str) -> tuple[TableRecord, list[dict[str, Any]], list[dict[str, Any]]] | None:
    """Return the record of a table, the settings that its page shows, and the others."""
    record = load(name)
    if record is None or not record.runs:
        return None
    found = [variant for variant in variants(record) if not _is_look(record, variant)]
    whole = [variant for variant in found if "shortened_from" not in variant]
    main = whole or found
    return record, main, [variant for variant in found if variant not in main]


def _is_look(record: TableRecord, variant: dict[str, Any]) -> bool:
    """Return whether nothing but the plain row was run, to choose a setting by; `runs_table` lists it."""
    rows = {run.row for run in record.runs if run.variant == variant}
    return "weight_decay" in variant and rows == {table_of(record, variant).baseline}


def _title(variant: dict[str, Any]) -> str:
    words = describe_variant(variant) or "as the recipe has it"
    return f"{words[0].upper()}{words[1:]}"


def _variant(record: TableRecord, variant: dict[str, Any]) -> str:
    table = table_of(record, variant)
    rows = summarize(table, record, variant=variant)
    made = [row for row in rows if row.runs]
    when = " After the temperature." if table.is_calibrated else ""
    parts = [f"**{_title(variant)}.**{when} {_circumstances(made)}"]
    if made:
        parts += [figures_table(made), claims_table(table, made)]
        if table.name == "attentions":
            parts.append(matched_table(made))
    parts.append(_left(table, rows, record, variant))
    return "\n\n".join(part for part in parts if part)


def _circumstances(rows: list[SummaryRow]) -> str:
    if not rows:
        return "No run is finished."
    made = [run.made for row in rows for run in row.runs]
    places = sorted({f"{entry['device']}, torch {entry['torch']}" for entry in made})
    seconds = [run.seconds["training"] for row in rows for run in row.runs]
    return f"{'; '.join(places)}; {min(seconds):.0f} to {max(seconds):.0f} s of training a run."


def figures_table(rows: list[SummaryRow]) -> str:
    """Return ours: mean and half width of the interval, one line a row."""
    columns = [cell.column for cell in rows[0].cells]
    lines = [
        f"| | seeds | {' | '.join(c.title for c in columns)} | chosen score | validation NLL |",
        "|---" * (len(columns) + 4) + "|",
    ]
    for row in rows:
        cells = " | ".join(_ours(cell) for cell in row.cells)
        losses = [run.training["validation"]["nll"] for run in row.runs]
        tail = f"{row.score} | {fmean(losses):.3f}"
        lines.append(f"| {row.row.title} | {row.num_seeds} | {cells} | {tail} |")
    return "\n".join(lines)


def claims_table(table: Table, rows: list[SummaryRow]) -> str:
    """Return every figure that the paper prints beside ours, and whether its claim holds."""
    pivot = table.row(table.pivot).title
    place = f"{table.place} ({table.printed_on})"
    lines = [
        f"| | figure | {place} | ours | difference | as good | the order against {pivot} |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for cell in row.cells:
            if cell.printed is None:
                continue
            difference, is_reached = "other data", ""
            if cell.difference is not None:
                difference = f"{cell.difference:+.3f}"
                is_reached = "yes" if cell.difference * cell.column.direction >= 0 else "no"
            lines.append(
                f"| {row.row.title} | {cell.column.title} | {cell.printed.value:.3f} | "
                f"{_ours(cell)} | {difference} | {is_reached} | {cell.claim or ''} |"
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def sentences(table: Table, rows: list[SummaryRow]) -> str:
    """Return, for every row, where it is better than the plain row and where worse, beyond the noise of the seeds."""
    said = []
    plain = table.row(table.baseline).title
    for row in rows:
        if row.row.name == table.baseline:
            continue
        better, worse, num_same, num_seeds = [], [], 0, table.num_seeds
        for cell in row.cells:
            change = cell.change
            if change is None or change.low is None or change.high is None:
                continue
            num_seeds = min(num_seeds, change.num_seeds)
            if change.low <= 0 <= change.high:
                num_same += 1
            else:
                is_better = (change.mean > 0) == (cell.column.direction > 0)
                (better if is_better else worse).append(f"{cell.column.title} ({change.mean:+.3f})")
        found = [f"better in {', '.join(better)}"] if better else []
        found += [f"worse in {', '.join(worse)}"] if worse else []
        if num_same:
            where = "the other figures" if found else "any figure"
            found.append(f"no significant difference in {where}")
        if found:
            few = f" ({num_seeds} seeds)" if num_seeds < table.num_seeds else ""
            said.append(f"- {row.row.title} against {plain}{few}: {'; '.join(found)}.")
    return "\n".join(said)


def matched_table(rows: list[SummaryRow]) -> str:
    """Return ECE and NLL on the validation split where all rows are equally accurate."""
    accuracy, matched = match_accuracy({row.row.title: row.runs for row in rows})
    if not matched:
        return ""
    lines = [
        f"At equal accuracy: the first epoch with {accuracy:.0%} on the validation split.",
        "",
        "| | epoch | accuracy | ECE | NLL |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.row} | {row.epoch.mean:.0f} | {row.accuracy.mean:.3f} | {row.ece.mean:.3f} | "
        f"{row.nll.mean:.3f} |"
        for row in matched
    ]
    return "\n".join(lines)


def scores_table(rows: list[SummaryRow]) -> str:
    """Return AUPR by every score: on the outliers that one is chosen by, then on the unknown sets."""
    lines: list[str] = []
    for row in rows:
        sets = list(row.runs[0].ood)
        if not lines:
            kinds = list(next(iter(row.runs[0].outliers.values())))
            titles = [f"made: {kind}" for kind in kinds] + [SET_TITLES.get(n, n) for n in sets]
            lines = [
                "AUPR by every score, on outliers made of validation images and on the unknown sets:",
                "",
                f"| | score | {' | '.join(titles)} |",
                "|---" * (len(titles) + 2) + "|",
            ]
        for score, kinds in row.runs[0].outliers.items():
            made = [fmean(run.outliers[score][kind] for run in row.runs) for kind in kinds]
            found = [fmean(_aupr(run, name, score) for run in row.runs) for name in sets]
            cells = " | ".join(f"{value:.3f}" for value in (*made, *found))
            lines.append(
                f"| {row.row.title} | {score}{' (chosen)' if score == row.score else ''} | {cells} |"
            )
    return "\n".join(lines)


def _aupr(run: TableRun, dataset: str, score: str) -> float:
    return run.figures["calibrated"][dataset][score]["aupr_ood_positive"][0]


def _left(
    table: Table, rows: list[SummaryRow], record: TableRecord, variant: dict[str, Any]
) -> str:
    """Return the failed runs and the rows that lack seeds."""
    failed = [run for run in record.runs if run.variant == variant and not run.is_finished]
    lines = [f"- Failed: {run.row}, seed {run.seed}: {run.error}" for run in failed]
    short = [row for row in rows if row.num_seeds < table.num_seeds]
    if short:
        names = ", ".join(f"{row.row.name} ({row.num_seeds} of {table.num_seeds})" for row in short)
        lines.append(f"- Not run, or not with all seeds: {names}.")
    return "\n".join(lines)


def runs_table() -> str:
    """Return all runs that were made, finished or failed."""
    lines = [
        "| table | settings | row | seed | accuracy | seconds | device, torch | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    parts = (("main", TEMPERATURE), ("ablation", NORMS))
    for name, part in (*((name, "") for name in NAMES), *parts):
        record = load(name, part=part)
        for run in record.runs if record is not None else ():
            accuracy, seconds = f"failed: {run.error}", ""
            if run.is_finished:
                test = next(iter(run.figures["raw"].values()))["probabilities"]
                accuracy = f"{test['accuracy'][0]:.2%}"
                seconds = _taken(run) or f"{run.seconds['training']:.0f}"
            made = f"{run.made['device']}, {run.made['torch']}"
            lines.append(
                f"| {name}{part} | {describe_variant(run.variant)} | {run.row} | {run.seed} | {accuracy} | "
                f"{seconds} | {made} | {run.made['source']} |"
            )
    return "\n".join(lines) if len(lines) > 2 else "None yet."


README_HEAD = """\
| model | accuracy | NLL | ECE | AUPR SVHN | AUPR CIFAR-100 | both, by the chosen score | seeds |
|---|---|---|---|---|---|---|---|"""


def readme_table() -> str:
    """Return the paper's best row beside what our two recipes make, and the references."""
    lines = []
    for name in ("main", "references"):
        record = load(name)
        if record is None:
            continue
        table = TABLES[name](data=DATA)
        # Another model than the recipe's is a look aside, which docs/results.md has.
        for variant in (found for found in variants(record) if "model" not in found):
            words = f" ({describe_variant(variant)})" if "shortened_from" in variant else ""
            rows = {row.row.name: row for row in summarize(table, record, variant=variant)}
            made = [row for row in rows.values() if row.runs]
            for row in (row for row in made if row.row.printed):
                system = PRINTED_TITLES[name].get(row.row.name, "LRFormer")
                line = _readme_line(f"{system}, printed in {table.place}", row, "paper")
                lines += [] if line in lines else [line]
            lines += [
                _readme_line(f"{rows[shown].row.title}{words}", rows[shown], "ours")
                for shown in README_ROWS[name]
                if rows[shown].runs
            ]
    return "\n".join([README_HEAD, *lines]) if lines else "Not measured yet."


def _readme_line(title: str, row: SummaryRow, which: str) -> str:
    if which == "ours":
        chosen = ", ".join(_ours(row.cell(name)) for name in README_CHOSEN)
        cells = [_ours(_calibrated(row, name)) for name in README_COLUMNS]
        cells.append(f"{chosen} ({row.score})")
        seeds = str(row.num_seeds)
    else:
        printed = [row.cell(name).printed for name in README_COLUMNS]
        cells = [*("" if figure is None else f"{figure.value:.3f}" for figure in printed), ""]
        seeds = "10"
    return f"| {title} | {' | '.join(cells)} | {seeds} |"


def _calibrated(row: SummaryRow, name: str) -> Cell:
    """Return the cell after the temperature, also of a table that has both."""
    names = {cell.column.name for cell in row.cells}
    return row.cell(f"{name}_t" if f"{name}_t" in names else name)


def cost_table() -> str:
    """Return what the runs of the main table took."""
    record = load("main")
    finished = [run for run in record.runs if run.is_finished] if record is not None else []
    if not finished:
        return "Not measured yet."
    lines = ["| row | settings | seed | minutes | images/s | device |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {run.row} | {describe_variant(run.variant) or f'{run.config.epochs} epochs'} | {run.seed} "
        f"| {_cost(run)} | {run.made['device']} |"
        for run in finished
    ]
    return "\n".join(lines)


def _cost(run: TableRun) -> str:
    if taken := _taken(run):
        return f"{taken} |"
    return f"{run.seconds['training'] / 60:.1f} | {run.training['images_per_second']:,.0f}"


def _taken(run: TableRun) -> str | None:
    """Return whose weights a run has that was not trained by itself; its seconds are theirs."""
    source = run.training.get("weights_of")
    return None if source is None else f"weights of `{source}`"


def _ours(cell: Cell) -> str:
    """Return the mean over seeds with its interval; of one seed that of the bootstrap, marked."""
    if cell.ours is None:
        return ""
    return f"{cell.ours.mean:.3f}{cell.spread(3)}{'*' if cell.bootstrap else ''}"


RESULT_TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    **{f"result-{name}": ("docs/results.md", partial(section, name)) for name in NAMES},
    **{f"details-{name}": ("docs/runs.md", partial(details, name)) for name in NAMES},
    "result-glance": ("docs/results.md", lambda: glance_table(load("ablation"))),
    "result-overconfidence": (
        "docs/results.md",
        lambda: overconfidence_table(load("ablation")),
    ),
    "result-reach": ("docs/results.md", lambda: reach_table(load("main"))),
    "result-best-epoch": ("docs/results.md", lambda: best_epoch_table(load("ablation"))),
    "result-decay": ("docs/results.md", lambda: decay_table(load("ablation"))),
    "result-norms": ("docs/results.md", lambda: norm_table(load("ablation", part=NORMS))),
    "result-temperature": (
        "docs/results.md",
        lambda: temperature_table(load("main", part=TEMPERATURE), load("main")),
    ),
    "result-runs": ("docs/runs.md", runs_table),
    "result-left": ("docs/results.md", left_table),
    "plan": ("docs/recipes.md", plan_table),
    "main-cost": ("docs/recipes.md", cost_table),
    "main-search": (
        "docs/recipes.md",
        lambda: search_table(RESULTS / f"{DATA}-main-search.json"),
    ),
    "results": ("README.md", readme_table),
}
