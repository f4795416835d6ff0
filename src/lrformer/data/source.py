"""What is known of a named data set before anything is read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lrformer.data.file_split import FileSplit, ImageFormat


@dataclass(frozen=True, kw_only=True, eq=False)
class RawSplit:
    """What a reader returns: samples, labels, and where they came from."""

    x: np.ndarray
    y: np.ndarray
    source: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A named data set.

    Attributes:
        summary: one line for a list.
        class_names: in the order of the labels; empty where only the files say them.
        splits: what `read` can read; a validation split is cut from `train`.
        read: takes the split, the folder for downloads and whether to download.
        is_image: whether the samples are images, and not points.
        is_cached: whether what was read is kept as arrays; not worth it for sets that come with a package.
        image_format: how files become arrays, where `read` gives files; a caller may ask for another.
        mean: published statistics of the training images, per channel; None to take those of the training split.
        std: the same.
    """

    summary: str
    class_names: tuple[str, ...]
    splits: tuple[str, ...]
    read: Callable[[str, Path, bool], RawSplit | FileSplit]
    is_image: bool = True
    is_cached: bool = True
    image_format: ImageFormat | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
