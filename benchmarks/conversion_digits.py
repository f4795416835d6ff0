"""Conversion measured: a timm ViT trained on digits, before, after and after a short fine-tune.

    python benchmarks/conversion_digits.py

writes benchmarks/results/conversion-digits.json and prints the table of docs/conversion.md.
"""

import json
import platform
import statistics
import time
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from lrformer._version import __version__
from lrformer.core import make_generator, seed_everything
from lrformer.interop import conversion_report, convert

RECORD = Path(__file__).parent / "results" / "conversion-digits.json"
NUM_TEST = 500
NUM_CALIBRATION = 64
VARIANTS: dict[str, dict[str, Any]] = {
    "dot_product": {"attention": "dot_product"},
    "lrsa": {"attention": "lrsa"},
    "lrsa, no data": {"attention": "lrsa", "calibration": None},
    "lrsa, key_scale=1": {"attention": "lrsa", "key_scale": 1.0},
    "lrsa, tied": {"attention": "lrsa", "tie_qk": True},
    "lrsa, tied, no data": {"attention": "lrsa", "tie_qk": True, "calibration": None},
    "lrsa_m": {"attention": "lrsa_m"},
    "lrsa_m, tied": {"attention": "lrsa_m", "tie_qk": True},
    "l2": {"attention": "l2"},
    "l2_provable": {"attention": "l2_provable"},
    "scsa": {"attention": "scsa"},
}


# Rules that were tried beside those of the package: what is tied, and what is matched.
def tie_mean(w_q: Tensor, w_k: Tensor, **_: int) -> Tensor:
    """Return the mean of the two maps."""
    return (w_q + w_k) / 2


def tie_q(w_q: Tensor, *_: Tensor, **__: int) -> Tensor:
    """Return the map of the queries."""
    return w_q


def tie_k(_: Tensor, w_k: Tensor, **__: int) -> Tensor:
    """Return the map of the keys."""
    return w_k


def match_factor(_: Any, start: Tensor, *__: Tensor) -> Tensor:
    """Return the temperature at which the factor in front of q.k is that of the original."""
    return start


TIES = {"nearest": None, "mean of q and k": tie_mean, "q": tie_q, "k": tie_k}
MATCHES = {"entropy": None, "factor": match_factor}
RANDOM_MODELS = (
    "vit_tiny_patch16_224",
    "deit3_small_patch16_224",
    "deit_tiny_distilled_patch16_224",
)
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def load_data() -> Data:
    """Return training pictures, their labels, test pictures, their labels: a fixed stratified split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pictures, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        pictures.astype("float32").reshape(-1, 1, 8, 8) / 8 - 1,
        labels,
        test_size=NUM_TEST,
        random_state=0,
        stratify=labels,
    )
    return tuple(torch.as_tensor(part) for part in (train_x, train_y, test_x, test_y))


def make_vit(depth: int = 4) -> nn.Module:
    """Return timm's VisionTransformer for 8 x 8 pictures."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=8,
        patch_size=2,
        in_chans=1,
        num_classes=10,
        embed_dim=64,
        depth=depth,
        num_heads=4,
        mlp_ratio=2.0,
    )


def train(model: nn.Module, data: Data, *, epochs: int, lr: float, seed: int) -> None:
    """Train `model` with AdamW and one learning-rate cycle."""
    pictures, labels = data[:2]
    generator = make_generator(seed)
    batches = len(labels) // 64
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lr, total_steps=epochs * batches, pct_start=0.2
    )
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=generator)
        for batch in order[: batches * 64].view(batches, 64):
            loss = nn.functional.cross_entropy(model(pictures[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """Return the share of test pictures that `model` gets right."""
    return float((model(data[2]).argmax(-1) == data[3]).double().mean())


def measure(original: nn.Module, data: Data, settings: dict[str, Any], *, seed: int) -> dict:
    """Return movement and accuracies of one conversion of `original`."""
    batch = data[0][:NUM_CALIBRATION]
    converted = convert(original, **{"calibration": batch} | settings)
    report = conversion_report(converted)
    with torch.no_grad():
        outputs = [model(data[2]) for model in (original, converted)]
    result = {
        "movement": float((outputs[1] - outputs[0]).norm() / outputs[0].norm()),
        "layers": [layer.attention for layer in report.layers],
        "after": accuracy(converted, data),
    }
    train(converted, data, epochs=5, lr=5e-4, seed=seed)
    return result | {"fine_tuned": accuracy(converted, data)}


def measure_rules(original: nn.Module, data: Data) -> dict[str, dict[str, float]]:
    """Return movement and accuracy of conversions to LRSA by the rules of the package and by others."""
    results = {}
    with torch.no_grad():
        expected = original(data[2])
    for tie in ("untied", *TIES):
        for match, match_rule in MATCHES.items():
            replaced = {"weights.tied_map": TIES.get(tie), "temperature._bisect": match_rule}
            patches = [
                patch(f"lrformer.interop.{name}", rule) for name, rule in replaced.items() if rule
            ]
            for one in patches:
                one.start()
            converted = convert(
                original, "lrsa", tie_qk=tie != "untied", calibration=data[0][:NUM_CALIBRATION]
            )
            for one in patches:
                one.stop()
            with torch.no_grad():
                moved = (converted(data[2]) - expected).norm() / expected.norm()
            name = f"{tie}, {match}"
            results[name] = {"movement": float(moved), "after": accuracy(converted, data)}
    return results


def measure_random_model(name: str) -> dict[str, float]:
    """Return how far the outputs of a timm model with random weights move, by variant, on noise."""
    import timm

    seed_everything(0)
    model = timm.create_model(name, num_classes=10, img_size=96).eval()
    batch = torch.randn(4, 3, 96, 96, generator=make_generator(1))
    moved = {}
    for variant in ("lrsa", "lrsa, tied", "l2", "scsa"):
        report = conversion_report(convert(model, **{"calibration": batch} | VARIANTS[variant]))
        moved[variant] = report.outputs
    return moved


def main(seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    """Measure everything, write the record and print the table."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    data = load_data()
    repeats = []
    for seed in seeds:
        seed_everything(seed)
        original = make_vit()
        train(original, data, epochs=20, lr=2e-3, seed=seed)
        variants = {
            name: measure(original, data, settings, seed=seed)
            for name, settings in VARIANTS.items()
        }
        rules = measure_rules(original, data)
        before = accuracy(original, data)
        repeats.append({"seed": seed, "before": before, "variants": variants, "rules": rules})
        print(json.dumps(repeats[-1]), flush=True)
    record = {
        "command": "python benchmarks/conversion_digits.py",
        "versions": {
            "lrformer": __version__,
            "torch": torch.__version__,
            "timm": metadata.version("timm"),
            "python": platform.python_version(),
        },
        "device": "cpu",
        "repeats": repeats,
        "random_models": {name: measure_random_model(name) for name in RANDOM_MODELS},
        "seconds": round(time.perf_counter() - start, 1),
    }
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(digits_table(record))
    print(rules_table(record))
    print(random_table(record))


def digits_table(record: dict) -> str:
    """Return the record's means over seeds as a Markdown table."""
    repeats = record["repeats"]

    def mean(key: str, name: str) -> float:
        return statistics.mean(repeat["variants"][name][key] for repeat in repeats)

    before = statistics.mean(repeat["before"] for repeat in repeats)
    lines = [
        "| converted to | outputs moved | accuracy after | after 5 epochs of fine-tuning |",
        "|---|---|---|---|",
        f"| (original) | | {before:.1%} | |",
    ]
    lines += [
        f"| {name} | {mean('movement', name):.1%} | {mean('after', name):.1%} "
        f"| {mean('fine_tuned', name):.1%} |"
        for name in repeats[0]["variants"]
    ]
    return "\n".join(lines)


def rules_table(record: dict) -> str:
    """Return the rules that were compared as a Markdown table of means over seeds."""
    repeats = record["repeats"]
    lines = ["| q and k, matched by | outputs moved | accuracy after |", "|---|---|---|"]
    for name in repeats[0]["rules"]:
        moved, after = (
            statistics.mean(repeat["rules"][name][key] for repeat in repeats)
            for key in ("movement", "after")
        )
        lines.append(f"| {name} | {moved:.1%} | {after:.1%} |")
    return "\n".join(lines)


def random_table(record: dict) -> str:
    """Return how far the outputs of random models moved as a Markdown table."""
    models = record["random_models"]
    names = list(next(iter(models.values())))
    lines = [f"| random weights | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {model} | {' | '.join(f'{moved[name]:.2%}' for name in names)} |"
        for model, moved in models.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
