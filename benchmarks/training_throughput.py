"""How much of a model's own speed the training loop keeps, augmentation included.

    python benchmarks/training_throughput.py --out benchmarks/results/training_throughput.json
    python benchmarks/training_throughput.py --smoke          # seconds, on the CPU

For each case one record holds two figures, in images per second:

- `loop`: `lrformer.training.train` on random images that lie on the device, shifted and flipped; the
  epochs after the first, which warms up, compiles and captures. Validation is not in it.
- `fixed`: forward, backward and optimizer step of the same model on one batch that never changes, in
  a CUDA graph (plain code on the CPU); no data, no augmentation, no logging.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrformer._version import __version__
from lrformer.core.provenance import checkout_commit
from lrformer.data import SHIFT_AND_FLIP
from lrformer.methods import create_method
from lrformer.models import create_model
from lrformer.training import OptimizerConfig, RuntimeConfig, TrainConfig, train
from lrformer.training.journal import read_log
from lrformer.training.optimizers import build_optimizer, parameter_groups

NUM_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model and size; `goal` is the share of the fixed batch's throughput that the loop must reach."""

    name: str
    model: str
    overrides: dict[str, Any]
    batch_size: int
    num_images: int
    compile: bool
    goal: float
    epochs: int = 5
    fixed_steps: int = 100
    side: int = 32


FULL = [
    Case(
        name=f"depth 6, width 384, patch 4, 32 px, {attention}{', compiled' if compiled else ''}",
        model="lrformer_small_depth6_patch4_32",
        overrides={"attention": attention},
        batch_size=512,
        num_images=50_000,
        compile=compiled,
        goal=0.6,
    )
    for attention in ("lrsa", "dot_product")
    for compiled in (False, True)
] + [
    Case(
        name=f"ViT-S/16, 224 px (32 px scaled on the device), {attention}, compiled",
        model="lrformer_small_patch16_224",
        overrides={"attention": attention},
        batch_size=512,
        num_images=10_240,
        compile=True,
        goal=0.9,
        epochs=4,
        fixed_steps=20,
    )
    for attention in ("dot_product", "lrsa")
]
SMOKE = [
    Case(
        name="smoke: one block, 8 px",
        model="lrformer_digits",
        overrides={"depth": 1, "in_chans": 3},
        batch_size=64,
        num_images=640,
        compile=False,
        goal=0.0,
        epochs=3,
        fixed_steps=10,
        side=8,
    )
]


def measure_loop(case: Case, device: str) -> list[float]:
    """Return the images per second of every epoch of a real run but the first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        folder.mkdir()
        random = np.random.default_rng(0)
        for split, count in (("train", case.num_images), ("val", max(case.batch_size, 512))):
            shape = (count, case.side, case.side, 3)
            np.save(folder / f"{split}-x.npy", random.integers(0, 256, shape, dtype=np.uint8))
            np.save(folder / f"{split}-y.npy", np.arange(count) % NUM_CLASSES)
        config = TrainConfig(
            data=str(folder),
            model=case.model,
            model_overrides=case.overrides,
            method="deterministic",
            epochs=case.epochs,
            batch_size=case.batch_size,
            augment=SHIFT_AND_FLIP,
            optimizer=OptimizerConfig(lr=1e-4),
        )
        runtime = RuntimeConfig(
            device=device, compile=case.compile, quiet=True, validate_every=case.epochs
        )
        train(config, Path(name) / "run", runtime=runtime)
        return [entry["images_per_second"] for entry in read_log(Path(name) / "run")[1:]]


def measure_fixed(case: Case, device: str) -> list[float]:
    """Return the images per second of repeats of forward, backward and step on one batch."""
    place = torch.device(device)
    torch.manual_seed(0)
    method = create_method(
        "deterministic",
        lambda: create_model(case.model, num_classes=0, **case.overrides),
        NUM_CLASSES,
    ).to(place)
    if case.compile:
        method.get_submodule("backbone").compile()
    method.train()
    config = OptimizerConfig(lr=1e-4)
    groups = parameter_groups(method, method.parameters(), config)
    optimizer = build_optimizer(config, groups, place)
    tokenizer = method.get_submodule("backbone.tokenizer")
    side: Any = tokenizer.img_size
    x = torch.randn(case.batch_size, 3, side, side, device=place)
    y = torch.arange(case.batch_size, device=place) % NUM_CLASSES

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        is_cuda = place.type == "cuda"
        with torch.autocast(place.type, torch.bfloat16, enabled=is_cuda, cache_enabled=False):
            loss = method.loss(x, y)
        loss.backward()
        optimizer.step()

    replay = _captured(step, optimizer) if place.type == "cuda" else step
    repeats = []
    for _ in range(5):
        _wait(place)
        begin = time.perf_counter()
        for _ in range(case.fixed_steps):
            replay()
        _wait(place)
        seconds = time.perf_counter() - begin
        repeats.append(case.fixed_steps * case.batch_size / seconds)
    return repeats[1:]


def _captured(step: Callable[[], None], optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return `step` as the replay of a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, device: str) -> dict[str, Any]:
    """Return the record of one case; a case that fails is a record too."""
    record: dict[str, Any] = {"case": vars(case)}
    try:
        loop, fixed = measure_loop(case, device), measure_fixed(case, device)
    except Exception:  # the other cases are still worth measuring
        return {**record, "error": traceback.format_exc()}
    ratio = statistics.median(loop) / statistics.median(fixed)
    return {
        **record,
        "loop": {"repeats": loop, "median": statistics.median(loop)},
        "fixed": {"repeats": fixed, "median": statistics.median(fixed)},
        "ratio": ratio,
        "is_goal_met": ratio >= case.goal,
    }


def main() -> None:
    """Measure every case, print one line each, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a tiny case on the CPU")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, help="where the record goes")
    arguments = parser.parse_args()
    device = "cpu" if arguments.smoke or not torch.cuda.is_available() else "cuda"
    cases = [case for case in (SMOKE if arguments.smoke else FULL) if arguments.only in case.name]
    record: dict[str, Any] = {
        "benchmark": "training_throughput",
        "commit": checkout_commit(),
        "lrformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "cases": [],
    }
    for case in cases:
        found = measure(case, device)
        record["cases"].append(found)
        if "error" in found:
            print(f"{case.name}: failed\n{found['error']}", flush=True)
        else:
            print(
                f"{case.name}: loop {found['loop']['median']:,.0f}, fixed "
                f"{found['fixed']['median']:,.0f} images/s, {found['ratio']:.0%} (goal "
                f"{case.goal:.0%})",
                flush=True,
            )
        if arguments.out is not None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(any("error" in found for found in record["cases"]))


if __name__ == "__main__":
    main()
