"""Unknown images made from known ones: what a detector may be chosen by without looking at a real unknown set."""

import dataclasses

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.data.arrays import Split

OUTLIER_KINDS = ("shuffled", "mixed", "inverted")
NUM_BLOCKS = 4


def make_outliers(split: Split, kind: str, *, seed: int = 0) -> Split:
    """Return one unknown image for each image of `split`; labels stay and say nothing.

    Args:
        kind: `shuffled` moves the 4 x 4 blocks of an image about, `mixed` is the mean of it and one of another
            class, `inverted` its negative.
        seed: of the moves and of the partners.
    """
    check_outliers(split, kind)
    images = np.asarray(split.x)
    generator = np.random.default_rng(seed)
    if kind == "shuffled":
        made = _shuffle_blocks(images, generator)
    elif kind == "mixed":
        made = _mix_classes(images, split.y, generator)
    else:
        made = 255 - images
    return dataclasses.replace(split, name=f"{split.name}/{kind}", x=made, files=None)


def make_noise(split: Split, *, seed: int = 0) -> Split:
    """Return as many images as `split` has, of its size, in which every value is drawn from 0 to 255 alike."""
    _check_images(split)
    noise = np.random.default_rng(seed).integers(0, 256, split.x.shape, dtype=np.uint8)
    return dataclasses.replace(split, name=f"{split.name}/noise", x=noise, files=None)


def check_outliers(split: Split, kind: str) -> None:
    """Raise where no outliers of this kind can be made of `split`, before any is."""
    if kind not in OUTLIER_KINDS:
        raise ConfigError(
            f"unknown kind of outliers '{kind}'.{did_you_mean(kind, OUTLIER_KINDS)} Known: "
            f"{', '.join(OUTLIER_KINDS)}."
        )
    _check_images(split)
    _check_possible(kind, split.x.shape[1:3], np.asarray(split.y))


def _check_possible(kind: str, shape: tuple[int, ...], labels: Int[np.ndarray, " b"]) -> None:
    height, width = shape
    if kind == "shuffled" and min(height, width) < NUM_BLOCKS:
        raise ConfigError(
            f"images of {height} x {width} pixels have no {NUM_BLOCKS} x {NUM_BLOCKS} blocks to move."
        )
    if kind == "mixed" and len(np.unique(labels)) < 2:
        raise ConfigError("images of one class alone cannot be mixed with those of another.")


def _check_images(split: Split) -> None:
    if not split.is_image:
        raise ConfigError(f"{split.name} holds points, not images; outliers are made of images.")


def make_input_outliers(
    inputs: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], kind: str, *, seed: int = 0
) -> Float[Tensor, "b c h w"]:
    """Return one unknown input for each image as a model takes it, `shuffled` or `mixed` as in `make_outliers`.

    Not inverted: what the negative of a normalized image is depends on its mean and deviation.
    """
    images = inputs.permute(0, 2, 3, 1).float().cpu().numpy()
    _check_possible(kind, images.shape[1:3], labels.cpu().numpy())
    generator = np.random.default_rng(seed)
    if kind == "shuffled":
        made = _shuffle_blocks(images, generator)
    elif kind == "mixed":
        made = _mix_classes(images, labels.cpu().numpy(), generator)
    else:
        raise ConfigError(f"kind ('{kind}') must be 'shuffled' or 'mixed'.")
    return torch.from_numpy(made).permute(0, 3, 1, 2).to(inputs)


def _shuffle_blocks(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return images whose blocks have changed places; pixels beyond whole blocks stay."""
    num, height, width, channels = images.shape
    rows, columns = height // NUM_BLOCKS, width // NUM_BLOCKS
    used = images[:, : rows * NUM_BLOCKS, : columns * NUM_BLOCKS]
    blocks = used.reshape(num, NUM_BLOCKS, rows, NUM_BLOCKS, columns, channels)
    blocks = blocks.swapaxes(2, 3).reshape(num, NUM_BLOCKS**2, rows, columns, channels)
    order = generator.random((num, NUM_BLOCKS**2)).argsort(axis=1)
    moved = np.take_along_axis(blocks, order[:, :, None, None, None], axis=1)
    moved = moved.reshape(num, NUM_BLOCKS, NUM_BLOCKS, rows, columns, channels).swapaxes(2, 3)
    made = images.copy()
    made[:, : rows * NUM_BLOCKS, : columns * NUM_BLOCKS] = moved.reshape(used.shape)
    return made


def _mix_classes(
    images: np.ndarray, labels: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Return the mean of each image and one of another class."""
    partners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        others = np.flatnonzero(labels != label)
        own = labels == label
        partners[own] = generator.choice(others, int(own.sum()))
    if images.dtype == np.uint8:
        return ((images.astype(np.uint16) + images[partners]) // 2).astype(np.uint8)
    return (images + images[partners]) / 2
