"""By what the default learning rate of trained weights was chosen: a few rates, from trained weights and from drawn ones.

python benchmarks/fine_tuning.py --data FOLDER    # with cifar10/ and cifar100/ as arrays

A small model is trained on CIFAR-10, then fine-tuned on a few images of ten classes of CIFAR-100's test set that it was
never shown, with both attentions. Everything is judged on the validation split, a fifth of those images.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from lrformer.core.provenance import source_digest
from lrformer.data import SHIFT_AND_FLIP, load_dataset
from lrformer.metrics import seed_interval
from lrformer.recipes.circumstances import circumstances
from lrformer.training import OptimizerConfig, RuntimeConfig, TrainConfig, train
from lrformer.training.metrics_file import read_training

RESULTS = Path(__file__).parent / "results"
RECORD = RESULTS / "fine-tuning.json"
MODEL = {"embed_dim": 96, "num_heads": 3, "depth": 6, "patch_size": 8}
NUM_TRAINED_ON, PRETRAINING_EPOCHS = 20_000, 20
# Places of classes of CIFAR-100, in the order of their names; ten far apart.
NEW_CLASSES = (0, 8, 13, 20, 41, 51, 60, 72, 82, 95)
FINE_TUNING_EPOCHS = 10
RATES = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
ATTENTIONS = {"lrsa": "lrformer", "dot_product": "deterministic"}
SEEDS = (0, 1, 2)
QUIET = RuntimeConfig(device="cpu", quiet=True)


def write_few(source: Path, folder: Path) -> Path:
    """Write ten classes of CIFAR-100's test set as a training set of their own."""
    found = load_dataset("cifar100", split="test", root=source)
    rows = np.flatnonzero(np.isin(found.y, NEW_CLASSES))
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "train-x.npy", np.asarray(found.x[rows]))
    np.save(folder / "train-y.npy", np.searchsorted(NEW_CLASSES, found.y[rows]))
    return folder


def write_first(source: Path, folder: Path) -> Path:
    """Write the first images of CIFAR-10's training set."""
    found = load_dataset("cifar10", split="train+val", root=source)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "train-x.npy", np.asarray(found.x[:NUM_TRAINED_ON]))
    np.save(folder / "train-y.npy", found.y[:NUM_TRAINED_ON])
    return folder


def pretrained(attention: str, data: Path, out: Path) -> Path:
    """Return the folder of a model that was trained on CIFAR-10."""
    config = TrainConfig(
        data=str(data),
        model="lrformer_tiny_depth6_patch4_32",
        model_overrides={**MODEL, "attention": attention},
        method="deterministic",
        epochs=PRETRAINING_EPOCHS,
        augment=SHIFT_AND_FLIP,
        optimizer=OptimizerConfig(lr=1e-3),
    )
    return train(config, out / attention, runtime=QUIET).path


def fine_tuned(
    attention: str, start: Path | None, data: Path, out: Path, *, lr: float, seed: int
) -> dict[str, float]:
    """Return accuracy and NLL on the validation split, after the temperature."""
    config = TrainConfig(
        data=str(data),
        val_fraction=0.2,
        model="lrformer_tiny_depth6_patch4_32",
        model_overrides={**MODEL, "attention": attention},
        start=None if start is None else str(start),
        method=ATTENTIONS[attention],
        epochs=FINE_TUNING_EPOCHS,
        augment=SHIFT_AND_FLIP,
        optimizer=OptimizerConfig(lr=lr),
        seed=seed,
    )
    name = f"{attention}-{'drawn' if start is None else 'trained'}-{lr:g}-{seed}"
    found = read_training(train(config, out / name, runtime=QUIET).path)
    return {name: found["validation_calibrated"][name] for name in ("accuracy", "nll")}


def measure(data: Path, out: Path) -> dict[str, Any]:
    """Return the record; what is in `out` is not trained again."""
    first, few = write_first(data, out / "first"), write_few(data, out / "few")
    rows = []
    for attention in ATTENTIONS:
        start = pretrained(attention, first, out)
        for weights, place in (("trained", start), ("drawn", None)):
            for lr in RATES:
                runs = [fine_tuned(attention, place, few, out, lr=lr, seed=seed) for seed in SEEDS]
                rows.append({"attention": attention, "weights": weights, "lr": lr, "runs": runs})
                print(attention, weights, lr, runs, flush=True)
    return {
        "benchmark": "fine_tuning",
        "pretraining": read_training(out / "lrsa")["validation"]["accuracy"],
        "model": MODEL,
        "seeds": list(SEEDS),
        "rows": rows,
        "made": {**circumstances(), "device": "cpu", "source": source_digest()},
    }


def fine_tuning_table() -> str:
    """Return accuracy and NLL for every rate, from trained and from drawn weights."""
    if not RECORD.exists():
        return "Not measured yet."
    rows = json.loads(RECORD.read_text())["rows"]
    lines = ["| attention | weights | rate | accuracy | NLL |", "|---|---|---|---|---|"]
    for row in rows:
        cells = []
        for name in ("accuracy", "nll"):
            over = seed_interval([run[name] for run in row["runs"]])
            assert over.low is not None
            assert over.high is not None
            cells.append(f"{over.mean:.3f} ± {(over.high - over.low) / 2:.3f}")
        best = {
            name: max(
                (
                    r
                    for r in rows
                    if r["attention"] == row["attention"] and r["weights"] == row["weights"]
                ),
                key=lambda r, sign=sign, name=name: sign * fmean(run[name] for run in r["runs"]),
            )
            for name, sign in (("accuracy", 1), ("nll", -1))
        }
        shown = [
            f"**{cell}**" if best[name] is row else cell
            for cell, name in zip(cells, best, strict=True)
        ]
        lines.append(
            f"| {row['attention']} | {row['weights']} | {row['lr']:g} | {' | '.join(shown)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10 and cifar100")
    parser.add_argument("--out", type=Path, help="folder of the runs; one that goes by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(arguments.data, arguments.out or Path(place))
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    print(fine_tuning_table())


if __name__ == "__main__":
    main()
