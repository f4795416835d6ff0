"""Why the variance of DUE finds no unknown images: how far their features are from its inducing points.

    python benchmarks/due_variance.py

trains DUE with few and many inducing points, and LRFormer beside it, on the digits 0 to 4, writes
benchmarks/results/due-variance.json, and takes some minutes on one core. The table is in docs/methods.md.
"""

import json
import platform
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from lrformer._version import __version__
from lrformer.core.provenance import checkout_commit, source_digest
from lrformer.evaluation import evaluate_run, load_ood_split, load_test_split
from lrformer.evaluation.run_data import OTHER_CLASSES
from lrformer.methods.due import DUE
from lrformer.training import Run, RuntimeConfig, TrainConfig, train

RECORD = Path(__file__).parent / "results" / "due-variance.json"
KNOWN = ("0", "1", "2", "3", "4")
EPOCHS = 40
BATCH_SIZE = 32
ROWS: dict[str, dict[str, Any]] = {
    "LRFormer": {"method": "lrformer"},
    "DUE": {"method": "due"},
    "DUE, 50 inducing points": {"method": "due", "method_overrides": {"num_inducing": 50}},
    "DUE, 200 inducing points": {"method": "due", "method_overrides": {"num_inducing": 200}},
}


def measure(row: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return how well a run finds unknown digits, and where their features are."""
    config = TrainConfig(
        data="digits",
        classes=KNOWN,
        model="lrformer_digits",
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        seed=seed,
        **ROWS[row],
    )
    run = train(config, folder, runtime=RuntimeConfig(device="cpu", quiet=True))
    scores = evaluate_run(run, ood=[OTHER_CLASSES], device="cpu").scores
    figures: dict[str, Any] = {"row": row, "seed": seed, "accuracy": scores("accuracy")}
    for score in ("entropy", "variance"):
        figures[f"auroc_{score}"] = scores("auroc", dataset=OTHER_CLASSES, score=score)
    if isinstance(run.method, DUE):
        known, unknown = distances(run)
        figures |= {"distance_known": known, "distance_unknown": unknown}
    return figures


@torch.no_grad()
def distances(run: Run) -> tuple[float, float]:
    """Return the mean distance to the nearest inducing point, over the mean length-scale: of known and unknown digits."""
    assert isinstance(run.method, DUE)
    method, gp = run.method.eval(), run.method.head.gp
    points = gp.variational_strategy.base_variational_strategy.inducing_points
    length_scale = gp.covar_module.base_kernel.lengthscale.mean()
    found = []
    for split in (load_test_split(run.config), load_ood_split(run.config, OTHER_CLASSES)[1]):
        features = method.features(run.preprocess(torch.from_numpy(split.x.copy())))
        away = torch.cdist(features, points).amin(1)
        found.append(float((away / length_scale).mean()))
    return found[0], found[1]


def variance_table() -> str:
    """Return the means over seeds, one line a row."""
    runs = json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    names = ("accuracy", "auroc_entropy", "auroc_variance", "distance_known", "distance_unknown")
    lines = [
        "| | seeds | accuracy | AUROC by entropy | AUROC by variance | distance, known | distance, unknown |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        mine = [run for run in runs if run["row"] == row]
        cells = [f"{fmean(run[n] for run in mine):.3f}" if n in mine[0] else "" for n in names]
        lines.append(f"| {row} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    """Measure every row with every seed, write the record and print the table."""
    torch.set_num_threads(1)
    runs = []
    with tempfile.TemporaryDirectory() as place:
        for seed in seeds:
            for number, row in enumerate(ROWS):
                runs.append(measure(row, seed, Path(place) / f"{number}-{seed}"))
                print(json.dumps(runs[-1]), flush=True)
    record = {
        "kind": "due-variance",
        "lrformer": __version__,
        "commit": checkout_commit(),
        "source": source_digest(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu, one thread",
        "epochs": EPOCHS,
        "batch_size": BATCH_SIZE,
        "runs": runs,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(variance_table())


if __name__ == "__main__":
    main()
