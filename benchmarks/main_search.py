"""How the recipe of `reproduce main` was chosen: short runs, judged on the validation split and made outliers alone.

    python benchmarks/main_search.py --out RUNS --record FILE [--epochs 16] [--only adamw,muon]

Candidates differ from the recipe in `lrformer.recipes.main_table` by one or two settings. A candidate that the
record holds is not made again; several processes may share one record. No test set and no unknown set is
opened.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lrformer.core import ConfigError
from lrformer.core.provenance import checkout_commit, source_digest
from lrformer.recipes.main_table import main_table
from lrformer.recipes.optimization import shortened
from lrformer.recipes.score_choice import find_outliers
from lrformer.recipes.sharing import sole_writer, take_in_hand
from lrformer.training import RuntimeConfig, TrainConfig, train
from lrformer.training.atomic_files import read_json, write_json
from lrformer.training.journal import read_log
from lrformer.training.metrics_file import read_metrics

Change = Callable[[TrainConfig], TrainConfig]


def optimizer(**settings: Any) -> Change:
    """Return the change of the optimizer alone."""
    return lambda config: dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, **settings)
    )


def augment(**settings: Any) -> Change:
    """Return the change of the augmentation alone."""
    return lambda config: dataclasses.replace(
        config, augment=dataclasses.replace(config.augment, **settings)
    )


def model(**settings: Any) -> Change:
    """Return the change of the model alone."""
    return lambda config: dataclasses.replace(
        config, model_overrides={**config.model_overrides, **settings}
    )


def method(**settings: Any) -> Change:
    """Return the change of the method's settings alone."""
    return lambda config: dataclasses.replace(
        config, method_overrides={**config.method_overrides, **settings}
    )


def both(*changes: Change) -> Change:
    """Return the changes one after the other."""

    def change(config: TrainConfig) -> TrainConfig:
        for each in changes:
            config = each(config)
        return config

    return change


PAPER = model(normalizer="paper", alpha=100.0)
# The optimizers were compared before the normalizer was chosen.
CANDIDATES: dict[str, Change] = {
    "recipe": both(),
    "paper_100": PAPER,
    "muon_fast": both(PAPER, optimizer(lr=8e-3)),
    "adamw": both(PAPER, optimizer(name="adamw", lr=1e-3)),
    "mixed": augment(mixup_alpha=0.8, cutmix_alpha=1.0, mix_probability=0.5),
    "wide": model(widths=(192, 384)),
    "spectral": method(spectral_bound=3.0),
    "trained_gp": lambda config: dataclasses.replace(config, method_overrides={}),
    "dot_product": both(
        lambda config: dataclasses.replace(config, method="deterministic", method_overrides={}),
        lambda config: dataclasses.replace(
            config,
            model_overrides=main_table().row("transformer").experiment.config.model_overrides,
        ),
    ),
}


def run_candidate(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one candidate on the validation split."""
    whole = main_table(data=arguments.data).row("lrformer").experiment.config
    config = shortened(CANDIDATES[name](whole), arguments.epochs)
    folder = Path(arguments.out) / f"{name}-{arguments.epochs}"
    runtime = RuntimeConfig(compile=torch.cuda.is_available(), validate_every=2)
    run = train(config, folder, runtime=runtime)
    entries = [entry for entry in read_log(folder) if "val_accuracy" in entry]
    metrics = read_metrics(folder)
    return {
        "name": name,
        "epochs": arguments.epochs,
        "optimizer": dataclasses.asdict(config.optimizer),
        "augment": dataclasses.asdict(config.augment),
        "model": {"name": config.model, **config.model_overrides},
        "method": {"name": config.method, **config.method_overrides},
        "batch_size": config.batch_size,
        "ema_decay": config.ema_decay,
        "validation": {key: entries[-1][f"val_{key}"] for key in ("accuracy", "nll", "ece")},
        "curve": [round(entry["val_accuracy"], 4) for entry in entries],
        "outliers": find_outliers(run, is_calibrated=True, batch_size=500),
        "images_per_second": max(entry["images_per_second"] for entry in read_log(folder)),
        "seconds": metrics["training"]["seconds"],
        "made": _made_by(),
    }


def main() -> None:
    """Run the candidates that the record lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="folder of the runs")
    parser.add_argument("--record", type=Path, required=True, help="file of the figures, as JSON")
    parser.add_argument("--data", default="cifar10", help="data set or folder (cifar10)")
    parser.add_argument("--epochs", type=int, default=16, help="of every candidate (16)")
    parser.add_argument(
        "--only",
        default=",".join(CANDIDATES),
        metavar="NAME,NAME",
        help=f"the candidates to run (all: {', '.join(CANDIDATES)})",
    )
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    for name in names:
        if name not in CANDIDATES:
            parser.error(f"no candidate '{name}'; known: {', '.join(CANDIDATES)}")
    try:
        _run(names, arguments)
    except ConfigError as error:
        parser.error(str(error))


def _run(names: list[str], arguments: argparse.Namespace) -> None:
    for name in names:
        with take_in_hand(Path(arguments.out) / f"{name}-{arguments.epochs}") as is_ours:
            record = _read(arguments.record, arguments.data)
            if not is_ours or _has(record, name, arguments.epochs):
                continue
            found = run_candidate(name, arguments)
            with sole_writer(arguments.record):
                record = _read(arguments.record, arguments.data)
                record["candidates"].append(found)
                write_json(arguments.record, record)
        print(json.dumps({key: found[key] for key in ("name", "validation", "images_per_second")}))


def _read(path: Path, data: str) -> dict[str, Any]:
    record = read_json(path) if path.exists() else {"data": data, "candidates": []}
    # Records from before it was kept are of the default.
    there = record.setdefault("data", "cifar10")
    if there != data:
        raise ConfigError(
            f"{path} holds candidates on {there}, not on {data}; give another --record."
        )
    return record


def _made_by() -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "commit": checkout_commit(),
        "source": source_digest(),
    }


def _has(record: dict[str, Any], name: str, epochs: int) -> bool:
    return any(
        found["name"] == name and found["epochs"] == epochs for found in record["candidates"]
    )


if __name__ == "__main__":
    main()
