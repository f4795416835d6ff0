"""What a prediction with uncertainty costs, for every method over the deterministic one.

All methods share one backbone, one attention and one run; their measurements are interleaved, and a
ratio is taken within each repeat. Writes a JSON record with every repeat.

    python benchmarks/methods_cost.py --device cuda cpu --out benchmarks/results/methods-cost.json
    python benchmarks/methods_cost.py --device cpu --smoke --out smoke.json

On the CPU the first batch size is measured, in float32 and with at most three repeats.
"""

import argparse
import contextlib
import datetime
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import lrformer
from lrformer.core.provenance import checkout_commit
from lrformer.heads import FlatVarianceWarning
from lrformer.methods import Method, create_method, list_methods
from lrformer.models import create_model
from lrformer.models.wide_resnet import WideResNetConfig

DROPOUT = 0.1  # a no-op in every method but the two that sample it
NUM_CLASSES = 10
PASSES = {"mc_dropout": 10, "mcd_gp": 10, "deep_ensemble": 10}
REPORTED_ONLY = ("due",)  # no goal is set for it
GOALS = {"single_pass": 1.05, "many_passes": 1.02}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One backbone at one input size."""

    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, int, int]
    methods: tuple[str, ...]


def settings(*, is_smoke: bool) -> list[Setting]:
    """Return the two backbones of the issue, or tiny ones of the same kinds."""
    every = tuple(list_methods())
    vit, side, overrides = (
        ("lrformer_tiny_patch4_32", 32, {"depth": 2})
        if is_smoke
        else ("lrformer_small_patch16_224", 224, {})
    )
    depth, widen = (10, 1) if is_smoke else (28, 10)
    wide_resnet = WideResNetConfig(
        num_classes=0, depth=depth, widen_factor=widen, drop_rate=DROPOUT
    )
    return [
        Setting(
            name=vit,
            build=lambda: create_model(vit, num_classes=0, proj_drop_rate=DROPOUT, **overrides),
            input_shape=(3, side, side),
            methods=every,
        ),
        Setting(
            name=f"wide_resnet{depth}_{widen}",
            build=wide_resnet.build,
            input_shape=(3, 32, 32),
            methods=tuple(name for name in every if name != "lrformer"),
        ),
    ]


def ready_method(name: str, setting: Setting, device: torch.device) -> Method:
    """Return a method that can predict, with random weights: cost does not depend on their values."""
    torch.manual_seed(0)
    method = create_method(name, setting.build, NUM_CLASSES).to(device)
    x = torch.randn(32, *setting.input_shape, device=device)
    y = torch.arange(32, device=device) % NUM_CLASSES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlatVarianceWarning)
        method.train().prepare([(x, y)])
        for stage in range(method.num_stages):
            method.start_stage(stage)
            method.finish_stage()
        method.eval().fit_posterior([(x, y)])
    return method


def prediction(method: Method, x: Tensor, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Return a function that predicts, with probabilities and the method's own score."""

    def run() -> Tensor:
        with _precision(x.device, dtype):
            predictive = method.predict(x)
            return predictive.probs.sum() + predictive.uncertainty(method.default_score).sum()

    return run


def sequential_dropout(method: Method, x: Tensor, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Return what MC Dropout costs without batching: ten passes with torch's own dropout."""

    def run() -> Tensor:
        dropouts = [m for m in method.modules() if isinstance(m, nn.Dropout)]
        for layer in dropouts:
            layer.train()
        with torch.no_grad(), _precision(x.device, dtype):
            total = sum(method(x).float().softmax(-1) for _ in range(PASSES["mc_dropout"]))
        for layer in dropouts:
            layer.eval()
        assert isinstance(total, Tensor)
        return total.sum()

    return run


def stacked_ensemble(method: Method, x: Tensor, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Return the ensemble's prediction with all weights stacked, whatever its rule of thumb says."""
    plain, stacked = method.config, replace(method.config, vectorize=True)
    run_plain = prediction(method, x, dtype)

    def run() -> Tensor:
        method.config = stacked
        try:
            return run_plain()
        finally:
            method.config = plain

    return run


def _precision(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager:
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def seconds(run: Callable[[], Tensor], device: torch.device, iterations: int) -> float:
    """Return the mean wall-clock seconds of `iterations` calls, between two synchronizations."""
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(iterations):
        run()
    _synchronize(device)
    return (time.perf_counter() - start) / iterations


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def memory(run: Callable[[], Tensor], method: Method, device: torch.device) -> dict[str, int]:
    """Return the bytes of a method's weights, and on a GPU what a prediction needs on top."""
    state = [*method.parameters(), *method.buffers()]
    record = {"state_bytes": sum(tensor.numel() * tensor.element_size() for tensor in state)}
    if device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        _synchronize(device)
        record["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    return record


def measure(
    setting: Setting,
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
    repeats: int,
    iterations: int,
) -> list[dict]:
    """Return one row for each method, with every repeat and its ratio to the deterministic one."""
    x = torch.randn(batch, *setting.input_shape, device=device)
    runs: dict[str, Callable[[], Tensor]] = {}
    memories: dict[str, dict[str, int]] = {}
    for name in setting.methods:
        method = ready_method(name, setting, device)
        runs[name] = prediction(method, x, dtype)
        if name == "mc_dropout":
            runs["mc_dropout sequential"] = sequential_dropout(method, x, dtype)
        if name == "deep_ensemble" and device.type == "cuda":
            runs["deep_ensemble stacked"] = stacked_ensemble(method, x, dtype)
        runs[name]()  # twice: the first call fills caches that the memory must not include
        memories[name] = memory(runs[name], method, device)
    times: dict[str, list[float]] = {name: [] for name in runs}
    if device.type == "cuda":
        for run in runs.values():
            seconds(run, device, iterations)
    for repeat in range(repeats):
        # Forwards and backwards in turn, so that a drifting clock favors nobody.
        names = list(runs) if repeat % 2 == 0 else list(reversed(runs))
        for name in names:
            times[name].append(seconds(runs[name], device, iterations))
    rows = []
    for name, values in times.items():
        passes = PASSES.get(name.split()[0], 1)
        ratios = [a / b for a, b in zip(values, times["deterministic"], strict=True)]
        kind = "single_pass" if passes == 1 else "many_passes"
        rows.append(
            {
                "device": device.type,
                "dtype": str(dtype).removeprefix("torch."),
                "backbone": setting.name,
                "batch": batch,
                "method": name,
                "passes": passes,
                "seconds": values,
                "median_seconds": statistics.median(values),
                "ratio": statistics.median(ratios),
                "ratio_per_pass": statistics.median(ratios) / passes,
                "goal_per_pass": None if name.split()[0] in REPORTED_ONLY else GOALS[kind],
                **memories.get(name, {}),
            }
        )
        row = rows[-1]
        print(
            f"{device.type:4} {setting.name:28} b={batch:<4} {name:22} {1e3 * row['median_seconds']:9.2f} ms "
            f"{row['ratio']:7.3f}x  {row['ratio_per_pass']:6.3f}x a pass",
            flush=True,
        )
    return rows


def environment() -> dict[str, str]:
    """Return what a reader needs to know about the machine and the versions."""
    return {
        "commit": checkout_commit() or "unknown",
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "cpu": platform.processor() or platform.machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "lrformer": lrformer.__version__,
        "python": platform.python_version(),
    }


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    default = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--device", nargs="+", choices=["cuda", "cpu"], default=default)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=5, help="calls in a repeat on a GPU")
    parser.add_argument("--backbone", choices=["vit", "wide_resnet"], nargs="+", default=None)
    parser.add_argument("--smoke", action="store_true", help="tiny models, to see that it runs")
    return parser.parse_args()


def main() -> None:
    """Measure and write the record."""
    given = arguments()
    kinds = dict(zip(("vit", "wide_resnet"), settings(is_smoke=given.smoke), strict=True))
    chosen = [kinds[kind] for kind in given.backbone or kinds]
    batches = [4] if given.smoke else given.batch
    repeats = 2 if given.smoke else given.repeats
    rows = []
    for name in given.device:
        device = torch.device(name)
        for setting in chosen:
            if name == "cpu":
                rows += measure(setting, batches[0], device, torch.float32, min(repeats, 3), 1)
                continue
            for batch in batches:
                rows += measure(setting, batch, device, torch.bfloat16, repeats, given.iterations)
                torch.cuda.empty_cache()
    record = {
        "schema": 1,
        "benchmark": "methods_cost",
        "command": " ".join(sys.argv),
        **environment(),
        "dropout": DROPOUT,
        "input_shapes": {setting.name: setting.input_shape for setting in chosen},
        "rows": rows,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
