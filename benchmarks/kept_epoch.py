"""What keeping the best epoch changes on few images: the test figures of the last and of the best one.

python benchmarks/kept_epoch.py --data FOLDER    # with cifar10/ as arrays

Two thousand images of CIFAR-10, a small model, with and without augmentation; figures after the temperature, on the
whole test set. Nothing is chosen by them.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from lrformer.core.provenance import source_digest
from lrformer.data import PLAIN, SHIFT_AND_FLIP, load_dataset
from lrformer.evaluation import EvaluationConfig, evaluate_run
from lrformer.metrics import seed_interval
from lrformer.recipes.circumstances import circumstances
from lrformer.training import RuntimeConfig, TrainConfig, train
from lrformer.training.metrics_file import read_training

RECORD = Path(__file__).parent / "results" / "kept-epoch.json"
MODEL = {"embed_dim": 48, "num_heads": 3, "depth": 3, "patch_size": 8}
NUM_IMAGES, EPOCHS = 2_000, 40
METHODS = {"deterministic": "dot_product", "lrformer": "lrsa"}
AUGMENTATIONS = {"none": PLAIN, "shift and flip": SHIFT_AND_FLIP}
SEEDS = (0, 1, 2, 3, 4)
FIGURES = ("accuracy", "nll", "ece_equal_width")
TITLES = ("accuracy", "NLL", "ECE")
QUIET = RuntimeConfig(device="cpu", quiet=True)


def write_few(source: Path, folder: Path) -> Path:
    """Write the first images of the training set, and the whole test set."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", NUM_IMAGES), ("test", None)):
        found = load_dataset(
            "cifar10", split="train+val" if split == "train" else split, root=source
        )
        np.save(folder / f"{split}-x.npy", np.asarray(found.x[:number]))
        np.save(folder / f"{split}-y.npy", found.y[:number])
    return folder


def measured(
    data: Path, out: Path, method: str, augment: str, keep: str, seed: int
) -> dict[str, Any]:
    """Return the test figures of one run, and the epoch that was kept."""
    config = TrainConfig(
        data=str(data),
        model="lrformer_tiny_depth6_patch4_32",
        model_overrides={**MODEL, "attention": METHODS[method]},
        method=method,
        epochs=EPOCHS,
        augment=AUGMENTATIONS[augment],
        keep="best" if keep == "best" else "last",
        seed=seed,
    )
    name = f"{method}-{augment}-{keep}-{seed}".replace(" ", "-")
    run = train(config, out / name, runtime=QUIET)
    scores = evaluate_run(run, config=EvaluationConfig(num_draws=1)).scores
    kept = read_training(run.path).get("kept_epochs", [EPOCHS])[0]
    return {"seed": seed, "kept": kept, **{figure: scores(figure) for figure in FIGURES}}


def measure(data: Path, out: Path) -> dict[str, Any]:
    """Return the record; what is in `out` is not trained again."""
    few = write_few(data, out / "few")
    rows = []
    for method in METHODS:
        for augment in AUGMENTATIONS:
            for keep in ("last", "best"):
                runs = [measured(few, out, method, augment, keep, seed) for seed in SEEDS]
                rows.append({"method": method, "augment": augment, "keep": keep, "runs": runs})
                print(rows[-1], flush=True)
    return {
        "benchmark": "kept_epoch",
        "num_images": NUM_IMAGES,
        "epochs": EPOCHS,
        "model": MODEL,
        "rows": rows,
        "made": {**circumstances(), "source": source_digest()},
    }


def kept_epoch_table() -> str:
    """Return the test figures of the last and of the best epoch, and the difference seed by seed."""
    if not RECORD.exists():
        return "Not measured yet."
    rows = json.loads(RECORD.read_text())["rows"]
    lines = [
        f"| method | augmentation | kept | epoch | {' | '.join(TITLES)} |",
        "|---" * (len(TITLES) + 4) + "|",
    ]
    for last, best in zip(rows[::2], rows[1::2], strict=True):
        for row in (last, best):
            cells = [_over([run[name] for run in row["runs"]]) for name in FIGURES]
            epochs = [run["kept"] for run in row["runs"]]
            shown = (
                f"{min(epochs)} to {max(epochs)}" if min(epochs) < max(epochs) else f"{epochs[0]}"
            )
            about = f"{row['method']} | {row['augment']} | {row['keep']}"
            lines.append(f"| {about} | {shown} | {' | '.join(cells)} |")
        changes = [
            [b[name] - a[name] for a, b in zip(last["runs"], best["runs"], strict=True)]
            for name in FIGURES
        ]
        lines.append(f"| | | difference | | {' | '.join(map(_change, changes))} |")
    return "\n".join(lines)


def _over(values: list[float], sign: str = "") -> str:
    over = seed_interval(values)
    assert over.low is not None
    assert over.high is not None
    return f"{over.mean:{sign}.3f} ± {(over.high - over.low) / 2:.3f}"


def _change(values: list[float]) -> str:
    """Return a difference, in bold where its interval leaves out zero."""
    over, text = seed_interval(values), _over(values, "+")
    assert over.low is not None
    assert over.high is not None
    return text if over.low <= 0 <= over.high else f"**{text}**"


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10")
    parser.add_argument("--out", type=Path, help="folder of the runs; one that goes by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(arguments.data, arguments.out or Path(place))
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    print(kept_epoch_table())


if __name__ == "__main__":
    main()
