"""The tables of docs/lipschitz.md: certified models beside uncertified ones, and what the searches met."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = "docs/lipschitz.md"


def _record(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def small_table() -> str:
    """Return accuracies on two moons and digits, one row a model, with what was chosen for it."""
    lines = [
        "| data | model | chosen on validation | test accuracy by seed | mean | L1 ... L2, input to tokens |",
        "|---|---|---|---|---|---|",
    ]
    for model in _record("certified-small")["models"]:
        chosen = [f"rate {model['chosen']['rate']:g}"]
        if model["chosen"]["alpha"] is not None:
            chosen.append(f"alpha {model['chosen']['alpha']:g}")
        if not model["validation"]:
            chosen = [f"{chosen[0]}, not chosen"]
        accuracies = [run["accuracy"] for run in model["runs"]]
        certificates = [run["certificate"] for run in model["runs"] if "certificate" in run]
        kept = "none"
        if certificates:
            lower = min(c["input_lower"] for c in certificates)
            kept = f"{lower:.3g} ... {max(c['input_upper'] for c in certificates):.3g}"
        cells = [
            model["data"].replace("moons", "two moons"),
            model["title"],
            ", ".join(chosen),
            ", ".join(f"{accuracy:.2%}" for accuracy in accuracies),
            f"{mean(accuracies):.2%}",
            kept,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cifar_table() -> str:
    """Return what a certificate costs on CIFAR-10 and buys on SVHN, one row a model."""
    if not (RESULTS / "certified-cifar.json").exists():
        return "Not measured yet; `python benchmarks/certified_cifar.py --data FOLDER` on a GPU makes it."
    lines = [
        "| model | accuracy | NLL | ECE | AUROC entropy | energy | neighbor | L1 ... L2, input to tokens | largest local constant | 1,000 of them |",
        "|---" * 10 + "|",
    ]
    for name, model in _record("certified-cifar")["models"].items():
        seen, certificate = model["measured"], model.get("certificate")
        kept = "none"
        if certificate:
            kept = f"{certificate['input_lower']:.3g} ... {certificate['input_upper']:.3g}"
        cells = [
            name,
            f"{model['accuracy']:.1%}",
            f"{model['nll']:.3f}",
            f"{model['ece']:.3f}",
            *(f"{model['auroc'][score]:.3f}" for score in ("entropy", "energy", "neighbor")),
            kept,
            f"{seen['local_constant_max']:.3g}",
            f"{seen['seconds']:.1f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def search_table() -> str:
    """Return the largest ratio of Jacobian to bound that the long search met, by bound and norm."""
    record = _record("lipschitz-search")
    lines = ["| bound | norm | ascents | at the start | after ascent |", "|---|---|---|---|---|"]
    for key, entry in sorted(record["bounds"].items()):
        name, norm = key.split("/")
        figures = f"{entry['ascents']} | {entry['start']:.3f} | {entry['ratio']:.4f}"
        lines.append(f"| `{name}` | {norm} | {figures} |")
    return "\n".join(lines)


CERTIFIED_TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "certified-small": (PAGE, small_table),
    "certified-cifar": (PAGE, cifar_table),
    "lipschitz-search": (PAGE, search_table),
}
