"""What a certificate costs in accuracy on CIFAR-10 and what it buys on SVHN, against the same size without.

    python benchmarks/certified_cifar.py --data FOLDER [--epochs 30] [--out FILE]
    python benchmarks/certified_cifar.py --smoke

FOLDER holds cifar10/train-x.npy (uint8, NHWC), cifar10/train-y.npy, the same for test, and
svhn/test-x.npy. Models are trained one after the other with one recipe: AdamW, one cycle, crop and
flip, bfloat16 autocast (the certified attention computes its distances in float32 by itself), and
evaluated in float32. Measured local constants of 1,000 test images are timed as well.
"""

import argparse
import dataclasses
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrformer._version import __version__
from lrformer.attention import use_backend
from lrformer.core import ConfigError
from lrformer.lipschitz import distortion, local_constant
from lrformer.metrics import auroc, expected_calibration_error
from lrformer.models import create_model
from lrformer.models.certified import CertifiedTransformer
from lrformer.training.atomic_files import read_json, write_json

CERTIFIED = "certified_depth6_patch4_32"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "uncertified": ("lrformer_tiny_depth6_patch4_32", {}),
    "uncertified_avg": ("lrformer_tiny_depth6_patch4_32", {"global_pool": "avg"}),
    "certified": (CERTIFIED, {}),
    "certified_avg": (CERTIFIED, {"global_pool": "avg"}),
    "certified_avg_budget90": (
        CERTIFIED,
        {"global_pool": "avg", "attn_budget": 0.9, "mlp_budget": 0.9},
    ),
    "certified_budget20": (CERTIFIED, {"attn_budget": 0.2, "mlp_budget": 0.2}),
}
SMOKE = {"embed_dim": 48, "depth": 2, "num_heads": 3}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays:
    """The data on the device, normalized by the training set's channel means and deviations."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    ood_x: Tensor


def load(folder: Path, device: str, limit: int | None) -> Arrays:
    """Return the arrays of a folder."""

    def images(name: str) -> Tensor:
        array = np.load(folder / name)[:limit]
        return torch.from_numpy(array).to(device).permute(0, 3, 1, 2).float() / 255

    def labels(name: str) -> Tensor:
        return torch.from_numpy(np.load(folder / name)[:limit].astype(np.int64)).to(device)

    train = images("cifar10/train-x.npy")
    mean = train.mean(dim=(0, 2, 3), keepdim=True)
    std = train.std(dim=(0, 2, 3), keepdim=True)
    return Arrays(
        train_x=(train - mean) / std,
        train_y=labels("cifar10/train-y.npy"),
        test_x=(images("cifar10/test-x.npy") - mean) / std,
        test_y=labels("cifar10/test-y.npy"),
        ood_x=(images("svhn/test-x.npy") - mean) / std,
    )


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images flipped at random and cropped at random from a zero padding of 4."""
    flips = torch.rand(len(x), device=x.device, generator=generator) < 0.5
    x = torch.where(flips[:, None, None, None], x.flip(-1), x)
    padded = F.pad(x, (4, 4, 4, 4))
    top, left = torch.randint(9, (2, len(x), 1), device=x.device, generator=generator)
    side = torch.arange(x.shape[-1], device=x.device)
    rows, columns = (top + side)[:, None, :, None], (left + side)[:, None, None, :]
    sample = torch.arange(len(x), device=x.device)[:, None, None, None]
    channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return padded[sample, channel, rows, columns]


def train(
    model: nn.Module, arrays: Arrays, *, epochs: int, batch: int, rate: float, seed: int
) -> float:
    """Train the model and return the seconds it took."""
    device = arrays.train_x.device
    generator = torch.Generator(device=device).manual_seed(seed)
    names = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1 and n not in names]
    others = [p for n, p in model.named_parameters() if p.ndim <= 1 or n in names]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate)
    steps = max(1, len(arrays.train_x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * steps, pct_start=0.15
    )
    model.train()
    begin = time.monotonic()
    for epoch in range(epochs):
        order = torch.randperm(len(arrays.train_x), device=device, generator=generator)
        total = torch.zeros((), device=device)
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            x = augment(arrays.train_x[rows], generator)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(x)
            loss = F.cross_entropy(logits.float(), arrays.train_y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.detach()
        print(f"  epoch {epoch + 1}/{epochs}: loss {float(total) / steps:.3f}", flush=True)
    return time.monotonic() - begin


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and pooled features in float32."""
    logits, features = [], []
    for part in x.split(500):
        pooled = model.forward_head(model.forward_features(part), pre_logits=True)
        features.append(pooled)
        logits.append(model.head(pooled))
    return torch.cat(logits), torch.cat(features)


def neighbor_distance(features: Tensor, known: Tensor) -> Tensor:
    """Return the distance to the fifth nearest of the known features."""
    count = min(5, len(known))
    return torch.cat(
        [
            torch.cdist(part, known).topk(count, largest=False).values[:, -1]
            for part in features.split(500)
        ]
    )


def evaluate(model: nn.Module, arrays: Arrays) -> dict[str, Any]:
    """Return accuracy, NLL, ECE and the AUROC against the unknown set by four scores."""
    model.eval()
    logits, features = outputs(model, arrays.test_x)
    ood_logits, ood_features = outputs(model, arrays.ood_x)
    _, known = outputs(model, arrays.train_x[:10_000])
    probs = logits.softmax(-1)

    def detect(inside: Tensor, outside: Tensor) -> float:
        return auroc(inside.cpu().numpy(), outside.cpu().numpy())

    def entropy(values: Tensor) -> Tensor:
        return torch.special.entr(values.softmax(-1)).sum(-1)

    pair = (logits, ood_logits)
    return {
        "accuracy": float((logits.argmax(-1) == arrays.test_y).float().mean()),
        "nll": float(F.cross_entropy(logits, arrays.test_y)),
        "ece": expected_calibration_error(probs.cpu().numpy(), arrays.test_y.cpu().numpy()),
        "auroc": {
            "max_prob": detect(*(-v.softmax(-1).amax(-1) for v in pair)),
            "entropy": detect(*(entropy(v) for v in pair)),
            "energy": detect(*(-v.logsumexp(-1) for v in pair)),
            "neighbor": detect(
                neighbor_distance(features, known), neighbor_distance(ood_features, known)
            ),
        },
    }


def measure(model: nn.Module, arrays: Arrays, count: int) -> dict[str, Any]:
    """Return local constants of the logits and the distances kept by the features, with the time."""
    x = arrays.test_x[:count]
    device = x.device

    def tokens(y: Tensor) -> Tensor:
        return model.forward_features(y)

    with use_backend(model, "reference"):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.monotonic()
        generator = torch.Generator(device=device).manual_seed(0)
        found = local_constant(model, x, num_steps=20, batch_size=250, generator=generator)
        worst, middle = float(found.max()), float(found.median())
        seconds = time.monotonic() - begin
    half = len(x) // 2
    pairs = {
        "id_id": (x[:half], x[half : 2 * half]),
        "id_ood": (x[: len(arrays.ood_x[:half])], arrays.ood_x[:half]),
        "flipped": (x[:half], x[:half].flip(-1)),
    }
    kept = {
        name: dataclasses.asdict(distortion(lambda y: tokens(y).flatten(1), a, b))
        for name, (a, b) in pairs.items()
    }
    return {
        "images": len(x),
        "seconds": seconds,
        "local_constant_median": middle,
        "local_constant_max": worst,
        "distortion_of_tokens": kept,
    }


def smoke_data() -> Path:
    """Return a folder of random arrays in the right layout."""
    folder = Path(tempfile.mkdtemp())
    rng = np.random.default_rng(0)
    for name in ("cifar10", "svhn"):
        (folder / name).mkdir()
        for split in ("train", "test"):
            x = rng.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
            np.save(folder / name / f"{split}-x.npy", x)
            np.save(folder / name / f"{split}-y.npy", rng.integers(0, 10, 64))
    return folder


def known_models(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Return the models that the record at `path` has already, or raise where they were made otherwise."""
    if not path.exists():
        return {}
    found = read_json(path)
    for name in ("kind", "epochs", "batch", "rate", "seed", "device", "torch"):
        if found.get(name) != record[name]:
            raise ConfigError(
                f"{path} has models with {name} {found.get(name)!r}, not {record[name]!r}; give another --out."
            )
    return found["models"]


def main() -> None:
    """Train and evaluate every variant and write one record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--smoke", action="store_true", help="tiny models on random arrays")
    default = Path(__file__).parent / "results" / "certified-cifar.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.smoke:
        parser.error("give --data, or --smoke for random arrays")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    epochs, batch = (1, 32) if arguments.smoke else (arguments.epochs, arguments.batch)
    record: dict[str, Any] = {
        "kind": "certified-cifar",
        "lrformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "is_smoke": arguments.smoke,
        "epochs": epochs,
        "batch": batch,
        "rate": arguments.rate,
        "seed": arguments.seed,
        "models": {},
    }
    if not arguments.smoke:
        try:
            record["models"] = known_models(arguments.out, record)
        except ConfigError as error:
            parser.error(str(error))
    arrays = load(arguments.data or smoke_data(), device, limit=None)
    for name in arguments.variants:
        preset, overrides = VARIANTS[name]
        torch.manual_seed(arguments.seed)
        settings = overrides | (SMOKE if arguments.smoke else {})
        model = create_model(preset, num_classes=10, **settings).to(device)
        print(name, flush=True)
        seconds = train(
            model, arrays, epochs=epochs, batch=batch, rate=arguments.rate, seed=arguments.seed
        )
        entry = {
            "preset": preset,
            "overrides": settings,
            "parameters": sum(p.numel() for p in model.parameters()),
            "train_seconds": seconds,
            **evaluate(model, arrays),
            "measured": measure(model, arrays, 1000),
        }
        if isinstance(model, CertifiedTransformer):
            entry["certificate"] = dataclasses.asdict(model.certificate())
        record["models"][name] = entry
        figures = {key: round(entry[key], 4) for key in ("accuracy", "nll", "ece")}
        print(f"  {figures} {entry['auroc']} {entry['measured']['seconds']:.1f} s", flush=True)
        # After every model, so that an interrupted run keeps what it has.
        if not arguments.smoke:
            write_json(arguments.out, record)
    print(json.dumps({name: m["accuracy"] for name, m in record["models"].items()}))


if __name__ == "__main__":
    main()
