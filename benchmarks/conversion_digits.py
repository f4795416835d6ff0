"""Conversion measured: a timm ViT trained on digits, before, after and after a short fine-tune.

    python benchmarks/conversion_digits.py

writes benchmarks/results/conversion-digits.json, which the tables of docs/conversion.md are made from, and takes
some minutes on one core. Rules are compared on pictures that are neither trained on nor those of the test.
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
from lrformer.core.provenance import source_digest
from lrformer.interop import conversion_report, convert

RECORD = Path(__file__).parent / "results" / "conversion-digits.json"
NUM_TEST = 500
NUM_VALIDATION = 300
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
KEY_SCALES = (1.0, 0.5, 0.125)
RANDOM_MODELS = (
    "vit_tiny_patch16_224",
    "deit3_small_patch16_224",
    "deit_tiny_distilled_patch16_224",
)
# Training pictures, their labels, pictures to measure on, their labels.
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def load_data() -> tuple[Data, Data]:
    """Return the data to compare rules on and those of the test, with the same training pictures."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    pictures = pictures.astype("float32").reshape(-1, 1, 8, 8) / 8 - 1
    *rest, test_x, test_y = _split(pictures, labels, NUM_TEST)
    train_x, train_y, val_x, val_y = _split(*rest, NUM_VALIDATION)
    return (train_x, train_y, val_x, val_y), (train_x, train_y, test_x, test_y)


def _split(pictures: Any, labels: Any, number: int) -> Data:
    """Return all but `number` pictures, their labels, and those: stratified, and always the same ones."""
    from sklearn.model_selection import train_test_split

    kept_x, held_x, kept_y, held_y = train_test_split(
        torch.as_tensor(pictures),
        torch.as_tensor(labels),
        test_size=number,
        random_state=0,
        stratify=labels,
    )
    return kept_x, kept_y, held_x, held_y


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
    """Return the share of the pictures to measure on that `model` gets right."""
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

    def measure_rule(name: str, **settings: Any) -> None:
        converted = convert(original, "lrsa", calibration=data[0][:NUM_CALIBRATION], **settings)
        with torch.no_grad():
            moved = (converted(data[2]) - expected).norm() / expected.norm()
        results[name] = {"movement": float(moved), "after": accuracy(converted, data)}

    for key_scale in KEY_SCALES:
        measure_rule(f"untied, entropy, key_scale {key_scale:g}", key_scale=key_scale)
    for tie in ("untied", *TIES):
        for match, match_rule in MATCHES.items():
            replaced = {"weights.tied_map": TIES.get(tie), "temperature._bisect": match_rule}
            patches = [
                patch(f"lrformer.interop.{name}", rule) for name, rule in replaced.items() if rule
            ]
            for one in patches:
                one.start()
            measure_rule(f"{tie}, {match}", tie_qk=tie != "untied")
            for one in patches:
                one.stop()
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


def main(seeds: tuple[int, ...] = (0, 1, 2, 3, 4)) -> None:
    """Measure everything, write the record and print the table."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    validation, data = load_data()
    repeats = []
    for seed in seeds:
        seed_everything(seed)
        original = make_vit()
        train(original, data, epochs=40, lr=2e-3, seed=seed)
        variants = {
            name: measure(original, data, settings, seed=seed)
            for name, settings in VARIANTS.items()
        }
        rules = measure_rules(original, validation)
        before = accuracy(original, data)
        repeats.append({"seed": seed, "before": before, "variants": variants, "rules": rules})
        print(json.dumps(repeats[-1]), flush=True)
    record = {
        "command": "python benchmarks/conversion_digits.py",
        "versions": {
            "lrformer": __version__,
            "source": source_digest(),
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
