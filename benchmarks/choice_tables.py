"""The tables of docs/results.md and docs/recipes.md that say by what a setting was chosen, and what it changes."""

import json
from pathlib import Path
from typing import Any

from lrformer.recipes import TABLES
from lrformer.recipes.table import SET_TITLES
from lrformer.recipes.table_record import TableRecord


def decay_table(ablation: TableRecord | None) -> str:
    """Return by what the weight decay of SGD was chosen: the plain row on the validation split."""
    looks = {
        (run.config.epochs, run.config.optimizer.weight_decay): run.training["validation"]
        for run in (ablation.runs if ablation is not None else ())
        if (run.row, run.seed, run.config.optimizer.name) == ("transformer", 0, "sgd")
        and run.is_finished
        and run.variant["pixels"] == 32
    }
    if not looks:
        return "Not measured yet."
    lines = [
        "| epochs | weight decay | validation accuracy | validation NLL |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {epochs} | {decay:g} | {look['accuracy']:.3f} | {look['nll']:.3f} |"
        for (epochs, decay), look in sorted(looks.items(), key=lambda item: item[0])
    ]
    return "\n".join(lines)


def norm_table(looks: TableRecord | None) -> str:
    """Return what the place of the norms changes under SGD, with and without the decay that is printed."""
    lines = [
        "| norms | weight decay | row | validation accuracy | validation NLL |",
        "|---|---|---|---|---|",
    ]
    titles = {
        row.name: row.title
        for row in (TABLES["ablation"](data=looks.data).rows if looks is not None else ())
    }
    found = [
        (run.config.model_overrides.get("norm", "pre"), -run.config.optimizer.weight_decay, run)
        for run in (looks.runs if looks is not None else ())
        if run.is_finished
    ]
    for norm, decay, run in sorted(found, key=lambda look: look[:2]):
        judged = run.training["validation"]
        lines.append(
            f"| {norm}-norm | {-decay:g} | {titles[run.row]} | {judged['accuracy']:.3f} | {judged['nll']:.3f} |"
        )
    return "\n".join(lines) if found else "Not measured yet."


def temperature_table(one: TableRecord | None, grown: TableRecord | None) -> str:
    """Return what a temperature by variance changes: the same weights with one for all inputs, and with it."""
    found = [
        line
        for run in (one.runs if one is not None else ())
        for twin in (grown.runs if grown is not None else ())
        if run.is_finished
        and run.training.get("weights_of") == twin.row == "lrformer_gp_variance"
        and (run.seed, run.variant) == (twin.seed, twin.variant)
        for line in (("one for all inputs", run), ("by variance", twin))
    ]
    if not found:
        return "Not measured yet."
    titles = ["temperature", "NLL", "ECE", "ECE, equal mass"]
    sets = [SET_TITLES.get(name, name) for name in found[0][1].ood]
    titles += [f"AUPR {name} by entropy" for name in sets]
    titles += [f"mean confidence, {name}" for name in sets]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for title, run in found:
        figures = run.figures["calibrated"]
        known = next(iter(figures.values()))["probabilities"]
        cells = [known[name] for name in ("nll", "ece_equal_width", "ece_equal_mass")]
        cells += [figures[name]["entropy"]["aupr_ood_positive"] for name in run.ood]
        cells += [
            figures[name]["probabilities"]["overconfidence_mean_confidence"] for name in run.ood
        ]
        shown = " | ".join(f"{mean:.4f} ({low:.4f} to {high:.4f})" for mean, low, high in cells)
        lines.append(f"| {title} | {shown} |")
    return "\n".join(lines)


def search_table(path: Path) -> str:
    """Return what the recipe of the main table was chosen by."""
    if not path.exists():
        return "Not measured yet."
    lines = [
        "| candidate | optimizer | rate | normalizer, alpha | else | epochs | accuracy | NLL | ECE |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in json.loads(path.read_text())["candidates"]:
        optimizer, model, judged = found["optimizer"], found["model"], found["validation"]
        # Other attentions have neither.
        sharpness = f"{model['normalizer']}, {model['alpha']:g}" if "alpha" in model else "none"
        lines.append(
            f"| `{found['name']}` | {optimizer['name']} | {optimizer['lr']:g} | {sharpness} "
            f"| {_other_changes(found)} | {found['epochs']} | {judged['accuracy']:.3f} | {judged['nll']:.3f} | "
            f"{judged['ece']:.3f} |"
        )
    return "\n".join(lines)


def _other_changes(found: dict[str, Any]) -> str:
    """Return in what else a candidate differs from the recipe."""
    widths = found["model"].get("widths")
    bound = found.get("method", {}).get("spectral_bound")
    changes = [
        *([] if widths is None else [f"widths {', '.join(map(str, widths))}"]),
        *([] if bound is None else [f"spectral bound {bound:g}"]),
        *(["mixup and cutmix"] if found["augment"]["mixup_alpha"] else []),
    ]
    return ", ".join(changes)
