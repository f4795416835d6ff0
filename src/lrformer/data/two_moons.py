"""Two interleaved half circles in the plane: the smallest set on which distance from the data can be seen."""

from pathlib import Path

import numpy as np

from lrformer.core import ConfigError
from lrformer.data.arrays import Split
from lrformer.data.source import RawSplit, Source

CLASS_NAMES = ("upper", "lower")
DEFAULT_NUM_SAMPLES = 1000
DEFAULT_NOISE = 0.1
# The named set is the same for everybody; another draw is a call of `two_moons` away.
SPLIT_SEEDS = {"train": 0, "test": 1}


def two_moons(
    num_samples: int = DEFAULT_NUM_SAMPLES, *, noise: float = DEFAULT_NOISE, seed: int = 0
) -> Split:
    """Return points (n, 2) in float32, half of them on each moon, with Gaussian noise of standard deviation `noise`."""
    if num_samples < 2 or noise < 0:
        raise ConfigError(
            f"num_samples ({num_samples}) must be at least 2 and noise ({noise}) not negative."
        )
    x, y = _draw(num_samples, noise, seed)
    mean, std = x.mean(axis=0), x.std(axis=0)
    return Split(
        name=f"two_moons/noise={noise:g},seed={seed}",
        x=x,
        y=y,
        class_names=CLASS_NAMES,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )


def _draw(num_samples: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import make_moons

    x, y = make_moons(num_samples, noise=noise, random_state=seed)
    return np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.int64)


def _read(split: str, root: Path, download: bool) -> RawSplit:  # noqa: ARG001 - nothing is read
    x, y = _draw(DEFAULT_NUM_SAMPLES, DEFAULT_NOISE, SPLIT_SEEDS[split])
    return RawSplit(x=x, y=y, source="scikit-learn make_moons")


TWO_MOONS = Source(
    summary="1,000 points on two half circles, noise 0.1",
    class_names=CLASS_NAMES,
    splits=tuple(SPLIT_SEEDS),
    read=_read,
    is_image=False,
    is_cached=False,
)
