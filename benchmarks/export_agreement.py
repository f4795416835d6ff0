"""How far exported files are from their runs, and how fast they are beside them.

    python benchmarks/export_agreement.py

trains small models on the digits, exports each in both formats, compares the files with the runs on the test images,
writes benchmarks/results/export-agreement.json, and takes some minutes on one core. The table is in docs/export.md.
"""

import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from lrformer._version import __version__
from lrformer.core.provenance import checkout_commit, source_digest
from lrformer.evaluation import load_test_split
from lrformer.evaluation.export import export
from lrformer.evaluation.export_check import compare, run_outputs
from lrformer.interop.predictor_file import open_predictor
from lrformer.training import Run, RuntimeConfig, TrainConfig, train

RECORD = Path(__file__).parent / "results" / "export-agreement.json"
EPOCHS = 4
BATCH_SIZE = 32
BATCH_TIMED = 64
REPEATS = 9
FORMATS = (".onnx", ".pt2")
DIGITS = {"model": "lrformer_digits"}
WIDE = {
    "model": "wide_resnet28_10",
    "model_overrides": {"depth": 10, "widen_factor": 2, "img_size": 8},
}
ROWS: dict[str, dict[str, Any]] = {
    "deterministic": {**DIGITS, "method": "deterministic"},
    "DUQ": {**DIGITS, "method": "duq"},
    "deep ensemble of 3": {
        **DIGITS,
        "method": "deep_ensemble",
        "method_overrides": {"num_members": 3},
        "epochs": EPOCHS // 2,
    },
    "SNGP": {**DIGITS, "method": "sngp"},
    "LRFormer": {**DIGITS, "method": "lrformer"},
    "LRFormer, temperature by variance": {
        **DIGITS,
        "method": "lrformer",
        "method_overrides": {"temperature_by_variance": True},
    },
    "certified transformer": {"model": "certified_digits", "method": "deterministic"},
    "WRN-10-2, SNGP": {**WIDE, "method": "sngp"},
}


def measure(row: str, folder: Path) -> list[dict[str, Any]]:
    """Return how far both files of a run are from it on the test images, and how long all three take."""
    settings = {"data": "digits", "epochs": EPOCHS, "batch_size": BATCH_SIZE} | ROWS[row]
    run = train(TrainConfig(**settings), folder, runtime=RuntimeConfig(device="cpu", quiet=True))
    images = np.asarray(load_test_split(run.config).x)
    expected = run_outputs(run, torch.from_numpy(images.copy()))
    found = []
    for suffix in FORMATS:
        path = export(run, folder / f"predictor{suffix}").path
        predict = open_predictor(path).predict
        agreement = compare(predict(images), expected, threshold=run.threshold)
        seconds = {"file": [], "run": []}
        for _ in range(REPEATS):  # in turns: the machine may not be ours alone
            seconds["file"].append(timed(predict, images[:BATCH_TIMED]))
            seconds["run"].append(timed(lambda x: predict_by(run, x), images[:BATCH_TIMED]))
        found.append(
            {
                "row": row,
                "format": suffix,
                "num_inputs": agreement.num_inputs,
                "differences": agreement.differences,
                "num_flags": agreement.num_flags,
                "megabytes": path.stat().st_size / 1e6,
                "seconds": seconds,
            }
        )
    return found


def predict_by(run: Run, images: np.ndarray) -> None:
    """Predict with the run itself."""
    run_outputs(run, torch.from_numpy(images.copy()))


def timed(call: Callable[[np.ndarray], Any], images: np.ndarray) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call(images)
    return time.perf_counter() - began


def agreement_table() -> str:
    """Return one line for each file."""
    lines = [
        "| | file | probs | uncertainty | variance | flags that differ | time over the run's | MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry in json.loads(RECORD.read_text(encoding="utf-8"))["files"]:
        shown = [
            f"{entry['differences'][name]:.1e}" if name in entry["differences"] else ""
            for name in ("probs", "uncertainty", "variance")
        ]
        ratio = median(entry["seconds"]["file"]) / median(entry["seconds"]["run"])
        flags = f"{entry['num_flags']} of {entry['num_inputs']}"
        lines.append(
            f"| {entry['row']} | `{entry['format']}` | {' | '.join(shown)} | {flags} | {ratio:.2f} | {entry['megabytes']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure every row and write the record."""
    import onnxruntime

    files = []
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(ROWS):
            files += measure(row, Path(folder) / str(number))
            print(json.dumps({k: v for k, v in files[-2].items() if k != "seconds"}), flush=True)
    record = {
        "kind": "export agreement",
        "lrformer": __version__,
        "source": source_digest(),
        "commit": checkout_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "batch_timed": BATCH_TIMED,
        "command": "python benchmarks/export_agreement.py",
        "files": files,
    }
    RECORD.write_text(f"{json.dumps(record, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
