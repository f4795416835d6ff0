"""One split of a data set in memory or memory-mapped, and the checks that every split must pass."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Shaped

from lrformer.core import ConfigError

IMAGE_CHANNELS = (1, 3)


class Rows:
    """Some rows of a large array, in a chosen order, read only when they are asked for."""

    def __init__(self, base: np.ndarray, rows: Int[np.ndarray, " b"]) -> None:
        self.base = base
        self.rows = rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that the chosen rows have together."""
        return (len(self.rows), *self.base.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Return the type of the entries."""
        return self.base.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | slice | Sequence[int] | np.ndarray) -> np.ndarray:
        return self.base[self.rows[key]]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("the rows of a larger array cannot become an array without a copy.")
        chosen = self.base[self.rows]
        return chosen if dtype is None else chosen.astype(dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """One split of a data set: images as uint8 (n, height, width, channels), or points as float32 (n, features).

    Attributes:
        name: the data set and the split, `cifar10/train`.
        x: the samples; an array, a memory map, or `Rows` of one.
        y: the labels, 0 to `num_classes - 1`.
        mean: what to subtract, per channel; of images scaled to [0, 1].
        std: what to divide by, per channel.
        files: where each image came from, if it was a file.
        digest: of the arrays that the samples lie in, by which they are known again.
    """

    name: str
    x: Shaped[np.ndarray, "b ..."] | Rows
    y: Int[np.ndarray, " b"]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    files: tuple[str, ...] | None = None
    digest: str | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_classes(self) -> int:
        """Return how many classes the labels can name, whether or not each occurs in this split."""
        return len(self.class_names)

    @property
    def is_image(self) -> bool:
        """Return whether the samples are uint8 images and not points."""
        return len(self.x.shape) == 4

    def normalized_like(self, other: "Split") -> "Split":
        """Return this split with the statistics of `other`: OOD data are seen through the ID normalization."""
        if len(self.mean) != len(other.mean):
            raise ConfigError(
                f"{self.name} has {len(self.mean)} channels but {other.name} has "
                f"{len(other.mean)}; load both with the same number of channels."
            )
        return dataclasses.replace(self, mean=other.mean, std=other.std)

    def take(self, rows: Int[np.ndarray, " k"]) -> "Split":
        """Return the split that holds only these rows, in this order, without copying a memory map."""
        base, chosen = (
            (self.x.base, self.x.rows[rows]) if isinstance(self.x, Rows) else (self.x, rows)
        )
        return dataclasses.replace(
            self,
            x=Rows(base, chosen) if isinstance(base, np.memmap) else base[chosen],
            y=self.y[rows],
            files=None if self.files is None else tuple(self.files[int(row)] for row in rows),
        )


def check_images(x: np.ndarray, *, where: str) -> None:
    """Raise unless `x` is a non-empty array of uint8 images with one or three channels; `where` names its file."""
    if x.ndim != 4 or x.dtype != np.uint8:
        raise ConfigError(
            f"{where}: images have shape {x.shape} and dtype {x.dtype}; they must be uint8 of shape "
            "(images, height, width, channels)."
        )
    if x.shape[3] not in IMAGE_CHANNELS:
        raise ConfigError(
            f"{where}: images have {x.shape[3]} channels; 1 (gray) or 3 (RGB) are supported, and "
            "channels come last."
        )
    if len(x) == 0:
        raise ConfigError(f"{where}: there is no image in it.")


def check_labels(y: np.ndarray, *, num_samples: int, num_classes: int | None, where: str) -> None:
    """Raise unless `y` has one integer in range for each sample; `where` names its file.

    Without `num_classes` any label from 0 on is in range.
    """
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ConfigError(
            f"{where}: labels have shape {y.shape} and dtype {y.dtype}; they must be one integer for "
            "each sample."
        )
    if len(y) != num_samples:
        raise ConfigError(f"{where}: there are {len(y)} labels for {num_samples} samples.")
    wrong = (y < 0) if num_classes is None else (y < 0) | (y >= num_classes)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        rule = (
            "is negative; labels count from 0"
            if num_classes is None
            else f"is outside 0..{num_classes - 1}; the set has {num_classes} classes"
        )
        raise ConfigError(f"{where}: label {int(y[row])} of row {row} {rule}.")


def check_training_classes(
    y: np.ndarray,
    class_names: tuple[str, ...],
    *,
    where: str,
    needed: Collection[int] | None = None,
) -> None:
    """Raise if a class has no training sample, or if there is only one class to learn; None needs all classes."""
    if len(class_names) < 2:
        raise ConfigError(
            f"{where}: there is only one class ({', '.join(class_names)}); a classifier needs two or "
            "more."
        )
    counts = np.bincount(y, minlength=len(class_names))
    empty_labels = np.flatnonzero(counts == 0).tolist()
    if missing := [label for label in empty_labels if needed is None or label in needed]:
        empty = class_names[missing[0]]
        raise ConfigError(f"{where}: class '{empty}' has no sample; add some or remove the class.")


def channel_statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 images scaled to [0, 1]."""
    levels = np.arange(256) / 255
    histogram = np.zeros((x.shape[3], 256), dtype=np.int64)
    for start in range(0, len(x), 4096):
        block = np.asarray(x[start : start + 4096]).reshape(-1, x.shape[3])
        for channel in range(x.shape[3]):
            histogram[channel] += np.bincount(block[:, channel], minlength=256)
    share = histogram / histogram.sum(axis=1, keepdims=True)
    mean = share @ levels
    std = np.sqrt(np.maximum(share @ levels**2 - mean**2, 0))
    # A channel that never varies is left as it is, and not divided by zero.
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1).tolist())
