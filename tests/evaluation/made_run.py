"""A run folder made in a second: a folder of colored squares, a tiny model, and the files that training would write."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lrformer.core import make_generator
from lrformer.training import RunConfig, TrainConfig
from lrformer.training.backbone import build_method, create_backbone, describe_backbone
from lrformer.training.metrics_file import update_metrics
from lrformer.training.run_config import write_run_config
from lrformer.training.run_folder import save_method, write_decision
from lrformer.training.splits import load_splits, validation_batches
from lrformer.training.validation import fit_decision, predict_split

COLORS = {"blue": (30, 40, 200), "green": (20, 180, 60), "red": (210, 30, 40)}
SIZE = 8


def write_images(folder: Path, color: tuple[int, int, int], number: int, *, seed: int) -> None:
    """Write noisy squares about one color as PNG files; some look like another color."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(number):
        shade = rng.normal(color, 55)
        pixels = rng.normal(shade, 25, (SIZE, SIZE, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:03d}.png")


def write_image_folder(folder: Path) -> Path:
    """Return a data set of three colors, with a test split and a fourth color as its unknown."""
    for part, (split, number) in enumerate((("train", 20), ("val", 12), ("test", 14))):
        for label, (name, color) in enumerate(COLORS.items()):
            write_images(folder / split / name, color, number, seed=10 * part + label)
    write_images(folder / "ood-gray", (128, 128, 128), 15, seed=99)
    return folder


def write_run(folder: Path, data: Path, *, root: Path, method: str = "deterministic") -> Path:
    """Return the folder of a run that was trained for a moment."""
    config = TrainConfig(
        data=str(data),
        root=str(root),
        model="lrformer_digits",
        model_overrides={"depth": 1, "embed_dim": 16, "num_heads": 2},
        method=method,
        epochs=1,
        batch_size=16,
    )
    train, val = load_splits(config)
    torch.manual_seed(0)
    record = describe_backbone(create_backbone(config, train), config)
    built = build_method(record, config, train.num_classes)
    batches = validation_batches(train, image_size=None, device=torch.device("cpu"))
    optimizer = torch.optim.Adam(built.parameters(), lr=1e-2)
    for _ in range(15):
        for batch in batches.epoch():
            optimizer.zero_grad()
            built.loss(batch.inputs, batch.labels).backward()
            optimizer.step()
    built.fit_posterior([(batch.inputs, batch.labels) for batch in batches.epoch()])
    predictive, labels = predict_split(
        built, validation_batches(val, image_size=None, device=torch.device("cpu"))
    )
    run = RunConfig(
        train=config,
        backbone=record,
        class_names=train.class_names,
        mean=train.mean,
        std=train.std,
        img_size=SIZE,
        data_digest=train.digest,
    )
    write_run_config(folder, run)
    save_method(folder, built)
    write_decision(folder, fit_decision(built, predictive, labels, true_positive_rate=0.95))
    update_metrics(folder, "training", {"made": "by a test"})
    return folder


def random_logits(
    num_samples: int, num_classes: int, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return logits that are right more often than chance, and labels."""
    generator = make_generator(seed)
    labels = torch.randint(num_classes, (num_samples,), generator=generator)
    logits = torch.randn(num_samples, num_classes, dtype=torch.float64, generator=generator)
    logits[torch.arange(num_samples), labels] += 1.5
    return logits.numpy(), labels.numpy()
