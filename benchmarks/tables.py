"""The tables of README.md and docs, made from the records in benchmarks/results.

python benchmarks/tables.py            # say which pages are not as the records make them
python benchmarks/tables.py --write    # put the tables between their markers
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import conversion_digits
import performance_tables as performance
from certified_tables import CERTIFIED_TABLES
from due_variance import variance_table
from export_agreement import agreement_table
from fine_tuning import fine_tuning_table
from kept_epoch import kept_epoch_table
from result_tables import RESULT_TABLES

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# The parts of a comparison, and how their sign is written.
COMPARED = {"theirs": "", "ours": "", "difference": "+"}


def record(name: str) -> dict[str, Any]:
    """Return a record by its file name."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def cifar10_table() -> str:
    """Return the CIFAR-10 runs of 30 epochs, one row each."""
    names = {
        "plain": "Transformer (dot product, linear head)",
        "lrformer": "LRFormer (LRSA, GP head), same width and depth",
        "compact": "LRFormer, compact preset",
        "compact_smoothed": "LRFormer, compact preset, label smoothing, EMA, drop path",
    }
    lines = [
        "| model | accuracy | NLL | ECE | AUROC SVHN | AUROC CIFAR-100 | parameters | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, run in record("cifar10-30-epochs")["runs"].items():
        figures = {
            (m["dataset"], m["name"], m["score"]): m["value"] for m in run["evaluation"]["metrics"]
        }
        cells = [
            f"{figures['cifar10/test', 'accuracy', None]:.1%}",
            f"{figures['cifar10/test', 'nll', None]:.3f}",
            f"{figures['cifar10/test', 'ece_equal_width', None]:.3f}",
            f"{figures['svhn', 'auroc', 'entropy']:.3f}",
            f"{figures['cifar100', 'auroc', 'entropy']:.3f}",
            f"{run['training']['num_parameters'] / 1e6:.1f}M",
            f"{run['training']['seconds']:.0f}",
        ]
        lines.append(f"| {names[key]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cost_table(device: str) -> str:
    """Return what a prediction costs over the deterministic one, per pass."""
    rows = record(f"methods-cost-{device}")["rows"]
    settings = list(dict.fromkeys((row["backbone"], row["batch"]) for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    ratios = {(r["method"], r["backbone"], r["batch"]): r["ratio_per_pass"] for r in rows}
    passes = {row["method"]: row["passes"] for row in rows}
    head = " | ".join(f"{backbone}, {batch}" for backbone, batch in settings)
    lines = [f"| method | passes | {head} |", "|---" * (len(settings) + 2) + "|"]
    for method in methods:
        cells = [
            f"{ratios[method, *setting]:.2f}" if (method, *setting) in ratios else ""
            for setting in settings
        ]
        lines.append(f"| {method} | {passes[method]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figure1_table() -> str:
    """Return the figures of every method on two moons, mean and half width of the interval over seeds."""
    lines = [
        "| method | tuned | test accuracy | AUROC | rank correlation |",
        "|---|---|---|---|---|",
    ]
    for row in record("figure1")["rows"]:
        spreads = [
            f"{row[name]['mean']:.3f} ± {row[name]['high'] - row[name]['mean']:.3f}"
            for name in ("auroc", "rank_correlation")
        ]
        tuned = f"`{row['knob']}` {row['value']:g}"
        lines.append(
            f"| {row['title']} | {tuned} | {row['accuracy']['mean']:.2%} | {' | '.join(spreads)} |"
        )
    return "\n".join(lines)


def demo_table() -> str:
    """Return the plain transformer and LRFormer of the demo, with the difference seed by seed."""
    found = record("demo")
    lines = [
        f"| | {' | '.join(found['runs'])} | difference | not ahead on seeds |",
        "|---|---|---|---|---|",
    ]
    for row in found["table"]:
        metric, digits = row["metric"], row["metric"]["digits"]
        half = {name: row[name]["high"] - row[name]["mean"] for name in COMPARED}
        cells = [
            f"{row[name]['mean']:{sign},.{digits}f} ± {half[name]:,.{digits}f}"
            for name, sign in COMPARED.items()
        ]
        behind = ", ".join(str(seed) for seed in row["seeds_not_ahead"]) or "none"
        arrow = "↑" if metric["is_higher_better"] else "↓"
        lines.append(f"| {metric['title']} {arrow} | {' | '.join(cells)} | {behind} |")
    return "\n".join(lines)


def bench_table(name: str, make: Callable[[dict[str, Any]], str]) -> str:
    """Return a table of `lrformer bench` with where it was measured, or how to measure it."""
    path = RESULTS / f"bench-{name}-cuda.json"
    if not path.exists():
        command = f"lrformer bench {name} --out benchmarks/results/{path.name}"
        return f"Not measured yet; on a GPU, `{command}` makes the record of this table."
    found = record(path.stem)
    return f"{performance.circumstances_line(found)}; `benchmarks/results/{path.name}`.\n\n{make(found)}"


def growth_of(part: str) -> Callable[[dict[str, Any]], str]:
    """Return the table function of one sweep."""
    return partial(performance.growth_table, part=part)


BENCH_TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "bench-ratios": ("attention", performance.ratio_table),
    "bench-contenders": ("attention", performance.contender_table),
    "bench-errors": ("attention", performance.error_table),
    "bench-roofline": ("attention", performance.roofline_table),
    "bench-tokens": ("attention", growth_of("tokens")),
    "bench-batch": ("attention", growth_of("batch")),
    "bench-training": ("training", performance.model_table),
    "bench-inference": ("inference", performance.model_table),
}

CONVERSIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "digits": conversion_digits.digits_table,
    "rules": conversion_digits.rules_table,
    "random": conversion_digits.random_table,
}

TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "cifar10-short": ("docs/runs.md", cifar10_table),
    "figure1": ("docs/figure1.md", figure1_table),
    "demo": ("docs/figure1.md", demo_table),
    **{
        f"conversion-{name}": (
            "docs/conversion.md",
            lambda make=make: make(record("conversion-digits")),
        )
        for name, make in CONVERSIONS.items()
    },
    "due-variance": ("docs/methods.md", variance_table),
    "export-agreement": ("docs/export.md", agreement_table),
    "methods-cost": ("docs/methods.md", partial(cost_table, "cuda")),
    "methods-cost-cpu": ("docs/methods.md", partial(cost_table, "cpu")),
    "fine-tuning": ("docs/training.md", fine_tuning_table),
    "kept-epoch": ("docs/training.md", kept_epoch_table),
    **RESULT_TABLES,
    **CERTIFIED_TABLES,
    **{
        name: ("docs/performance.md", partial(bench_table, *table))
        for name, table in BENCH_TABLES.items()
    },
}


def pages_with_tables() -> Iterator[tuple[Path, str]]:
    """Yield every page with its tables as the records make them."""
    texts: dict[Path, str] = {}
    for name, (file, make) in TABLES.items():
        page = ROOT / file
        text = texts.get(page) or page.read_text(encoding="utf-8")
        pattern = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        if not re.search(pattern, text, flags=re.DOTALL):
            sys.exit(f"{file} has no place for the table '{name}'.")
        texts[page] = re.sub(
            pattern, lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text, flags=re.DOTALL
        )
    yield from texts.items()


def main() -> None:
    """Write the pages that differ from their records, or name them."""
    parser = argparse.ArgumentParser(
        description="The tables of README.md and docs against the records."
    )
    parser.add_argument("--write", action="store_true", help="put the tables between their markers")
    is_writing = parser.parse_args().write
    stale = [
        (page, text)
        for page, text in pages_with_tables()
        if text != page.read_text(encoding="utf-8")
    ]
    for page, text in stale:
        if is_writing:
            page.write_text(text, encoding="utf-8")
        print(
            f"{page.relative_to(ROOT)} {'is written' if is_writing else 'is not as its records make it'}"
        )
    if not stale:
        print("every page is as its records make it")
    elif not is_writing:
        sys.exit("--write puts the tables in their places")


if __name__ == "__main__":
    main()
