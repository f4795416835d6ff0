"""The data of a run: what it trains on, what it is validated on, and how both become batches."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.data import PLAIN, DeviceBatches, Split, load_dataset
from lrformer.data.loading import is_image_folder
from lrformer.training.backbone import file_image_size
from lrformer.training.config import TrainConfig, default_batch_size

VALIDATION_BATCH = 512
# How many times the smallest class the largest is, where it is worth a word.
IMBALANCE = 3


def load_splits(config: TrainConfig) -> tuple[Split, Split]:
    """Return the training and the validation split; image files are scaled to the model's size."""
    is_files = is_image_folder(config.data)
    train, val = (
        load_dataset(
            config.data,
            split=split,
            root=config.root,
            image_size=file_image_size(config) if is_files else None,
            channels=config.channels,
            classes=config.classes,
            val_fraction=config.val_fraction,
            seed=config.seed,
            skip_unreadable=config.skip_unreadable and is_files,
        )
        for split in ("train", "val")
    )
    return train, val.normalized_like(train)


def class_counts(split: Split) -> Int[np.ndarray, " c"]:
    """Return how many samples of each class there are."""
    return np.bincount(split.y, minlength=split.num_classes)


def describe_imbalance(split: Split) -> str:
    """Return in words how large the largest and the smallest class are, where one has many times the other's samples."""
    counts = class_counts(split)
    largest, smallest = int(counts.argmax()), int(counts.argmin())
    if counts[largest] < IMBALANCE * counts[smallest]:
        return ""
    names = split.class_names
    return f"; classes of {counts[smallest]:,} ({names[smallest]}) to {counts[largest]:,} ({names[largest]}) samples"


def check_augment(config: TrainConfig, split: Split) -> None:
    """Raise where points would be varied as images are."""
    if split.is_image or config.augment == PLAIN:
        return
    changed = {
        name: value for name, value in vars(config.augment).items() if value != getattr(PLAIN, name)
    }
    raise ConfigError(
        f"augment ({', '.join(f'{name}={value!r}' for name, value in changed.items())}) is for images, but "
        f"{split.name} holds points; leave it out (--augment none)."
    )


def check_batch_size(config: TrainConfig, split: Split, *, world_size: int) -> int:
    """Return the images of one step, or raise if they cannot be shared out or are more than there are."""
    size = config.batch_size or default_batch_size(len(split))
    if size % (world_size * config.accumulate):
        raise ConfigError(
            f"batch_size ({size}) must be a multiple of processes times accumulate "
            f"({world_size} x {config.accumulate})."
        )
    if len(split) < size:
        raise ConfigError(
            f"{split.name} has {len(split)} samples, fewer than batch_size ({size}); "
            "choose a smaller batch_size."
        )
    return size


def training_batches(
    config: TrainConfig,
    split: Split,
    *,
    image_size: int | None,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    is_compiled: bool = False,
) -> DeviceBatches:
    """Return the pieces of training batches of one process; a last, incomplete batch is left out."""
    size = check_batch_size(config, split, world_size=world_size)
    return DeviceBatches(
        split,
        batch_size=size // (world_size * config.accumulate),
        device=device,
        augment=config.augment if split.is_image else None,
        shuffle=True,
        drop_last=True,
        seed=config.seed,
        image_size=image_size,
        rank=rank,
        world_size=world_size,
        is_compiled=is_compiled,
    )


def validation_batches(
    split: Split, *, image_size: int | None, device: torch.device
) -> DeviceBatches:
    """Return the batches of the validation split, whole and in order, in every process."""
    return DeviceBatches(split, batch_size=VALIDATION_BATCH, device=device, image_size=image_size)


class PlainLoader:
    """The training data without augmentation, for what is set before and fitted after training.

    They come in a shuffled order: a data set may be sorted by class, and some methods look at the
    first samples only. `share=True` gives each process its own part.
    """

    def __init__(self, batches: DeviceBatches, *, share: bool) -> None:
        # A copy, so that the samples are on the device once.
        plain = copy.copy(batches)
        plain.augment = PLAIN
        # Other shapes, seen once or twice, are not worth compiling.
        plain.is_compiled = False
        # Small enough that every process gets a batch.
        plain.batch_size = min(VALIDATION_BATCH, max(1, len(batches.split) // batches.world_size))
        plain.drop_last = False
        plain.rank, plain.world_size = 0, 1
        self._batches = plain
        self._part = (batches.rank, batches.world_size) if share else (0, 1)
        self.dataset = batches.split

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rank, world_size = self._part
        for index, batch in enumerate(self._batches.epoch(0)):
            if index % world_size == rank:
                yield batch.inputs, batch.labels
