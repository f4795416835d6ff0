"""A long search for a counterexample to any bound: more shapes, seeds and steps than the tests have.

    python benchmarks/lipschitz_search.py --seconds 300

Writes one JSON record: for every bound and norm the largest ratio |J| / bound that was met and where.
A ratio above 1 is a hole in a proof, and the exit status is 1.
"""

import argparse
import itertools
import json
import platform
import sys
import time
from pathlib import Path

import torch

from lrformer._version import __version__
from lrformer.lipschitz import attack
from lrformer.lipschitz.targets import ONE_NORM, TARGETS, Shape

SIZES = [(2, 2, 1, 1), (2, 3, 2, 2), (3, 3, 2, 2), (5, 4, 2, 2), (8, 6, 3, 2), (12, 4, 2, 1)]
STRENGTHS = [0.05, 0.3, 3.0, 30.0, 300.0]


def search(seconds: float, num_steps: int) -> dict:
    """Return the worst ratio of every bound after `seconds` of ascents from ever new starts."""
    results: dict[str, dict] = {}
    pairs = [(name, norm) for name in TARGETS for norm in ONE_NORM.get(name, ("F", "max"))]
    shapes = [
        Shape(n=n, e=e, d=d, strength=strength, num_heads=h)
        for strength, (n, e, d, h) in itertools.product(STRENGTHS, SIZES)
    ]
    begin = time.monotonic()
    for seed in itertools.count():
        shape = shapes[(seed * 7) % len(shapes)]
        for name, norm in pairs:
            if time.monotonic() - begin > seconds:
                return results
            generator = torch.Generator().manual_seed(seed)
            case = TARGETS[name](shape, norm, generator)
            found = attack(
                case.target,
                case.free,
                norm=norm,
                generator=generator,
                num_steps=num_steps,
                learning_rate=(0.02, 0.05, 0.1)[seed % 3],
            )
            entry = results.setdefault(f"{name}/{norm}", {"ratio": 0.0, "start": 0.0, "ascents": 0})
            entry["ascents"] += 1
            entry["start"] = max(entry["start"], found.start)
            if found.ratio > entry["ratio"]:
                entry.update(ratio=found.ratio, seed=seed, step=found.step, shape=vars(shape))
    raise AssertionError("unreachable")


def main() -> None:
    """Search, write the record, and fail if any bound was passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--steps", type=int, default=100)
    default = Path(__file__).parent / "results" / "lipschitz-search.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = search(arguments.seconds, arguments.steps)
    record = {
        "kind": "lipschitz-search",
        "lrformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu, one thread, float64",
        "seconds": arguments.seconds,
        "steps": arguments.steps,
        "num_ascents": sum(entry["ascents"] for entry in results.values()),
        "largest_ratio": max(entry["ratio"] for entry in results.values()),
        "bounds": results,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    for name, entry in sorted(results.items()):
        print(
            f"{name:28} {entry['start']:.3f} -> {entry['ratio']:.6f}  ({entry['ascents']} ascents)"
        )
    # The last digits of a Jacobian in float64 are not evidence.
    sys.exit(1 if record["largest_ratio"] > 1 + 1e-9 else 0)


if __name__ == "__main__":
    main()
