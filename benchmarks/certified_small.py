"""Certified models beside uncertified ones of the same size on two moons and digits, on the CPU.

    python benchmarks/certified_small.py [--seeds 3] [--only "certified, mean" ...]

Digits are compared with equal pooling, once with all tokens as features and once with their mean. Each
model has its learning rate and, where there is one, its alpha chosen on a fifth of the training set; then
it is trained on all of it for every seed and tested once. Every run, chosen or not, is in
benchmarks/results/certified-small.json; models that are not run again keep their place in it.
"""

import argparse
import dataclasses
import itertools
import json
import platform
import time
from collections.abc import Callable
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
RATES, ALPHAS = (1e-3, 3e-3, 1e-2), (10.0, 100.0)


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


class Flattened(nn.Module):
    """A transformer whose classifier reads all its tokens, as that of a certified one may."""

    def __init__(self, name: str, num_classes: int, **settings: Any) -> None:
        super().__init__()
        self.backbone: Any = create_model(name, num_classes=0, **settings)
        width = self.backbone.embed_dim * self.backbone.pos_embed.shape[1]
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(self.backbone.forward_features(x).flatten(1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One model, its data, and the settings among which its validation accuracy chooses."""

    title: str
    build: Callable[..., nn.Module]
    preset: str
    settings: dict[str, Any]
    data: Callable[[int], tuple[Tensor, ...]]
    epochs: int
    batch: int
    rates: tuple[float, ...] = RATES
    alphas: tuple[float | None, ...] = (None,)

    def candidates(self) -> list[dict[str, Any]]:
        """Return the settings to choose from."""
        grid = itertools.product(self.rates, self.alphas)
        return [{"rate": rate, "alpha": alpha} for rate, alpha in grid]

    def model(self, alpha: float | None) -> nn.Module:
        """Return the model with random weights."""
        chosen = {} if alpha is None else {"alpha": alpha}
        return self.build(self.preset, **self.settings, **chosen)


_MOONS: dict[str, Any] = {"data": moons, "epochs": 20, "batch": 50}
_DIGITS: dict[str, Any] = {"data": digits, "epochs": 60, "batch": 64}


def _entry(title: str, preset: str, shared: dict[str, Any], **settings: Any) -> Entry:
    own = {name: settings.pop(name) for name in ("build", "rates", "alphas") if name in settings}
    return Entry(
        title=title, preset=preset, settings=settings, **{"build": create_model} | shared | own
    )


ENTRIES = [
    _entry("certified, mean", "certified_digits", _DIGITS, num_classes=10, global_pool="avg"),
    _entry("uncertified, mean", "lrformer_digits", _DIGITS, num_classes=10, alphas=ALPHAS),
    _entry("certified, all tokens", "certified_digits", _DIGITS, num_classes=10),
    _entry(
        "uncertified, all tokens",
        "lrformer_digits",
        _DIGITS,
        num_classes=10,
        alphas=ALPHAS,
        build=Flattened,
    ),
    _entry("certified, depth 3", "certified_two_moons", _MOONS, num_classes=2, rates=(3e-3,)),
    _entry(
        "certified, depth 9", "certified_two_moons_depth9", _MOONS, num_classes=2, rates=(3e-3,)
    ),
    _entry("uncertified, depth 9", "lrformer_two_moons", _MOONS, num_classes=2, alphas=ALPHAS),
]


def fit(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, batch: int, rate: float) -> float:
    """Train by AdamW with one cycle and return the seconds it took."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    steps = len(x) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * steps, pct_start=0.1
    )
    begin = time.monotonic()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch)[:steps]:
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return time.monotonic() - begin


@torch.no_grad()
def score(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return accuracy and NLL."""
    logits = model.eval()(x)
    return {
        "accuracy": float((logits.argmax(-1) == y).double().mean()),
        "nll": float(F.cross_entropy(logits, y)),
    }


def choose(entry: Entry, epochs: int) -> list[dict[str, Any]]:
    """Return every candidate with its validation figures, the best first."""
    x, y, *_ = entry.data(0)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held, kept = order[: len(x) // 5], order[len(x) // 5 :]
    tried = []
    for candidate in entry.candidates():
        torch.manual_seed(0)
        model = entry.model(candidate["alpha"])
        settings = {"epochs": epochs, "batch": entry.batch, "rate": candidate["rate"]}
        fit(model, x[kept], y[kept], **settings)
        tried.append(candidate | {"epochs": epochs} | score(model, x[held], y[held]))
        print("  validation", tried[-1], flush=True)
    return sorted(tried, key=lambda one: (-one["accuracy"], one["nll"]))


def test(entry: Entry, chosen: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the figures of one model on the test set, trained on the whole training set."""
    train_x, train_y, test_x, test_y = entry.data(seed)
    torch.manual_seed(seed)
    model = entry.model(chosen["alpha"])
    settings = {"epochs": entry.epochs, "batch": entry.batch, "rate": chosen["rate"]}
    seconds = fit(model, train_x, train_y, **settings)
    run: dict[str, Any] = {"seed": seed, "epochs": entry.epochs, "seconds": seconds}
    run |= score(model, test_x, test_y)
    if isinstance(model, CertifiedTransformer):
        run["certificate"] = dataclasses.asdict(model.certificate())
    return run


def main() -> None:
    """Choose, train and test every model and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    titles = [entry.title for entry in ENTRIES]
    parser.add_argument("--only", nargs="+", choices=titles, default=titles, metavar="TITLE")
    default = Path(__file__).parent / "results" / "certified-small.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "kind": "certified-small",
        "lrformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu, one thread",
        "two_moons_noise": NOISE,
    }
    known: list[dict[str, Any]] = []
    if arguments.out.exists():
        known = json.loads(arguments.out.read_text()).get("models", [])
    done = {model["title"]: model for model in known}
    for entry in ENTRIES:
        if entry.title not in arguments.only:
            continue
        print(entry.preset, entry.title, flush=True)
        is_choice = len(entry.candidates()) > 1
        tried = choose(entry, entry.epochs // 2) if is_choice else entry.candidates()
        runs = []
        for seed in range(arguments.seeds):
            runs.append(test(entry, tried[0], seed))
            print("  test", seed, round(runs[-1]["accuracy"], 4), flush=True)
        done[entry.title] = {
            "data": entry.data.__name__,
            "title": entry.title,
            "preset": entry.preset,
            "settings": entry.settings,
            "batch": entry.batch,
            "parameters": sum(p.numel() for p in entry.model(None).parameters()),
            "chosen": {name: tried[0][name] for name in ("rate", "alpha")},
            "validation": tried if is_choice else [],
            "runs": runs,
        }
        record["models"] = [done[title] for title in titles if title in done]
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
