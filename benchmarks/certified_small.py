"""Certified models beside uncertified ones of the same size on two moons and digits, on the CPU.

    python benchmarks/certified_small.py [--seeds 2]

Both are trained by one recipe. Writes benchmarks/results/certified-small.json.
"""

import argparse
import dataclasses
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrformer._version import __version__
from lrformer.data import load_dataset
from lrformer.data.two_moons import two_moons
from lrformer.models import create_model
from lrformer.models.certified import CertifiedTransformer

NOISE = 0.05


def moons(seed: int) -> tuple[Tensor, ...]:
    """Return 1,000 training and 1,000 test points, normalized by the training points."""
    train, test = (
        two_moons(1000, noise=NOISE, seed=seed),
        two_moons(1000, noise=NOISE, seed=seed + 100),
    )
    mean, std = torch.tensor(train.mean), torch.tensor(train.std)
    points = [(torch.from_numpy(split.x) - mean) / std for split in (train, test)]
    labels = [torch.from_numpy(split.y) for split in (train, test)]
    return points[0], labels[0], points[1], labels[1]


def digits(_: int) -> tuple[Tensor, ...]:
    """Return the package's train and test digits, normalized by the training images."""
    splits = [load_dataset("digits", split=name) for name in ("train", "test")]
    images = [torch.from_numpy(np.asarray(s.x)).float().permute(0, 3, 1, 2) for s in splits]
    mean, std = images[0].mean(), images[0].std()
    labels = [torch.from_numpy(np.asarray(s.y)) for s in splits]
    return (images[0] - mean) / std, labels[0], (images[1] - mean) / std, labels[1]


RUNS: list[tuple[str, Any, dict[str, Any], int, int]] = [
    ("certified_two_moons", moons, {"num_classes": 2}, 20, 50),
    ("certified_two_moons_depth9", moons, {"num_classes": 2}, 20, 50),
    ("lrformer_two_moons", moons, {"num_classes": 2}, 20, 50),
    ("certified_digits", digits, {"num_classes": 10}, 60, 64),
    ("lrformer_digits", digits, {"num_classes": 10}, 60, 64),
]


def fit(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, batch: int, rate: float) -> None:
    """Train by AdamW with one cycle; no augmentation."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    steps = len(x) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * steps, pct_start=0.1
    )
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch)[:steps]:
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def main() -> None:
    """Train every model for every seed and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    default = Path(__file__).parent / "results" / "certified-small.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for name, data, settings, epochs, batch in RUNS:
        for seed in range(arguments.seeds):
            train_x, train_y, test_x, test_y = data(seed)
            torch.manual_seed(seed)
            model = create_model(name, **settings)
            begin = time.monotonic()
            fit(model, train_x, train_y, epochs=epochs, batch=batch, rate=arguments.rate)
            seconds = time.monotonic() - begin
            model.eval()
            with torch.no_grad():
                logits = model(test_x)
            run: dict[str, Any] = {
                "model": name,
                "seed": seed,
                "epochs": epochs,
                "batch": batch,
                "parameters": sum(p.numel() for p in model.parameters()),
                "accuracy": float((logits.argmax(-1) == test_y).double().mean()),
                "nll": float(F.cross_entropy(logits, test_y)),
                "seconds": seconds,
            }
            if isinstance(model, CertifiedTransformer):
                run["certificate"] = dataclasses.asdict(model.certificate())
            runs.append(run)
            print(name, seed, run["accuracy"], round(run["nll"], 4), round(seconds), flush=True)
    record = {
        "kind": "certified-small",
        "lrformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu, one thread",
        "rate": arguments.rate,
        "two_moons_noise": NOISE,
        "runs": runs,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
