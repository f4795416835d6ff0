"""Tiny folders of images and splits of random pixels; nothing comes from outside."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lrformer.data import Split


def _random_split(num_samples=40, *, side=8, channels=3, num_classes=4, seed=0) -> Split:
    rng = np.random.default_rng(seed)
    return Split(
        name="random/train",
        x=rng.integers(0, 256, (num_samples, side, side, channels), dtype=np.uint8),
        y=np.arange(num_samples, dtype=np.int64) % num_classes,
        class_names=tuple(f"class {label}" for label in range(num_classes)),
        mean=(0.5, 0.4, 0.3)[:channels],
        std=(0.2, 0.25, 0.3)[:channels],
    )


def _write_image(path: Path, *, seed: int, side: int = 8, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    depth = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, depth), dtype=np.uint8)
    Image.fromarray(pixels.squeeze()).save(path)
    return path


def _write_folder(folder: Path, *, splits=("train", "val"), classes=("cat", "dog"), count=4):
    """Write `count` images of each class into each split, all different."""
    seed = 0
    for split in splits:
        for name in classes:
            for number in range(count):
                seed += 1
                _write_image(folder / split / name / f"{number}.png", seed=seed)
    return folder


@pytest.fixture
def random_split():
    """Return a maker of splits of random pixels."""
    return _random_split


@pytest.fixture
def write_image():
    """Return a writer of one random image file."""
    return _write_image


@pytest.fixture
def write_folder():
    """Return a writer of a folder of classes of random images."""
    return _write_folder
