"""Batches made where they are used: the set lives on the device, and so do the permutation and the augmentation."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import psutil
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.data.arrays import Split
from lrformer.data.augment import PLAIN, AugmentConfig, augment_images
from lrformer.data.mixing import beta_quantiles, erase, mix_images, partner_rows, soft_targets
from lrformer.data.scaling import fit_square
from lrformer.data.streams import hash32, sample_keys

MOST_DEVICE_BYTES = 32 * 2**30
# Of what is free: the model, its gradients and the batches need room as well.
SHARE_OF_FREE = 0.5
BATCHES_AHEAD = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """What a model is fed: normalized inputs, labels, soft targets if images were mixed, and the rows they come from."""

    inputs: Float[Tensor, "b ..."]
    labels: Int[Tensor, " b"]
    targets: Float[Tensor, "b c"] | None
    indices: Int[Tensor, " b"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Raw samples of a batch and, if images are mixed, those that they are mixed with."""

    own: Shaped[Tensor, "b ..."]
    partners: Shaped[Tensor, "b ..."] | None

    def to(self, device: torch.device) -> "Samples":
        """Return the same samples on `device`."""
        partners = self.partners
        return Samples(
            own=self.own.to(device, non_blocking=True),
            partners=None if partners is None else partners.to(device, non_blocking=True),
        )


class DeviceBatches:
    """Epochs of one split on one device, in a seeded order, resumable at any step.

    What a sample looks like depends on (seed, epoch, sample) alone: not on its batch, on the number of processes or on
    the step at which a run was resumed.

    Args:
        split: what to draw from.
        batch_size: samples a step of this process.
        augment: how training images are varied; None for the plain ones.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether a last, smaller batch is left out.
        image_size: side to which the center square of the finished images is scaled on the device; None keeps theirs.
        rank: which of `world_size` processes this is; each takes its part of a global batch of
            `batch_size * world_size`.
        device_bytes: a larger set stays on the disk and is read ahead, batch by batch; None is half of what is free
            on the device, and 32 GiB at most.
        is_compiled: whether the images of a set on the device are varied and mixed by compiled code, in far fewer
            kernels. It rounds otherwise than plain code: a pixel at a threshold may fall on the other side of it.
            AugMix stays plain: a graph of its nine operations would be slow to compile. So does a last, smaller batch.
    """

    def __init__(
        self,
        split: Split,
        *,
        batch_size: int,
        device: torch.device | str = "cpu",
        augment: AugmentConfig | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        image_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        device_bytes: int | None = None,
        is_compiled: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size ({batch_size}) must be at least 1.")
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank ({rank}) must lie in 0..{world_size - 1} (world_size).")
        if not split.is_image and (augment or image_size):
            raise ConfigError(
                f"{split.name} holds points, not images; augment and image_size are for images."
            )
        self.split = split
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.augment = augment or PLAIN
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.image_size = image_size
        self.rank = rank
        self.world_size = world_size
        left_over = len(split) % (batch_size * world_size)
        if not drop_last and 0 < left_over < world_size:
            raise ConfigError(
                f"the last batch of {split.name} has {left_over} samples for {world_size} "
                "processes; drop it with drop_last=True or choose another batch_size."
            )
        if len(self) == 0:
            raise ConfigError(
                f"{split.name} has {len(split)} samples, fewer than one batch of {batch_size} on "
                f"{world_size} processes; choose a smaller batch_size."
            )
        num_bytes = int(np.prod(split.x.shape)) * split.x.dtype.itemsize
        room = _room_on(self.device) if device_bytes is None else device_bytes
        self.is_resident = num_bytes <= room
        self.is_compiled = is_compiled and self.is_resident and self.augment.policy != "augmix"
        self.y = torch.from_numpy(np.array(split.y)).to(self.device)
        self.x = self._rows(np.arange(len(split))).to(self.device) if self.is_resident else None
        shape = (-1, 1, 1) if split.is_image else (-1,)
        self.mean = torch.tensor(split.mean, device=self.device).view(shape)
        self.std = torch.tensor(split.std, device=self.device).view(shape)
        # Made once: neither can a CUDA graph copy them to the device nor torch.compile follow scipy.
        self.mixup = beta_quantiles(self.augment.mixup_alpha, self.device)
        self.cutmix = beta_quantiles(self.augment.cutmix_alpha, self.device)

    def __len__(self) -> int:
        whole = self.batch_size * self.world_size
        return len(self.split) // whole if self.drop_last else -(-len(self.split) // whole)

    def order(self, epoch: int) -> Int[Tensor, " n"]:
        """Return the order in which an epoch goes through the split, the same in every process."""
        if not self.shuffle:
            return torch.arange(len(self.split))
        key = int(sample_keys(torch.tensor([len(self.split)]), seed=self.seed, epoch=epoch))
        return torch.randperm(len(self.split), generator=torch.Generator().manual_seed(key))

    def epoch(self, epoch: int = 0, *, first_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, from `first_step` on."""
        whole = self.batch_size * self.world_size
        order = self.order(epoch)
        if self.is_resident:
            order = order.to(self.device)
        steps = [order[step * whole : (step + 1) * whole] for step in range(first_step, len(self))]
        mine = [rows.tensor_split(self.world_size)[self.rank] for rows in steps]
        if self.is_resident:
            for indices in mine:
                yield self.assemble(indices, self.keys(indices, epoch))
        else:
            yield from self._read_ahead(mine, epoch)

    def keys(self, indices: Int[Tensor, " b"], epoch: int) -> Int[Tensor, " b"]:
        """Return the keys from which everything random about these samples follows in this epoch."""
        return sample_keys(indices, seed=self.seed, epoch=epoch)

    def assemble(
        self,
        indices: Int[Tensor, " b"],
        keys: Int[Tensor, " b"],
        samples: Samples | None = None,
    ) -> Batch:
        """Return the batch of these rows; nothing is read back from the device, so that a CUDA graph can hold it.

        Args:
            keys: from `keys(indices, epoch)`.
            samples: what was read for these rows, if the set is not on the device.
        """
        partners = partner_rows(keys, len(self.split)) if self.augment.is_mixing else None
        if samples is None:
            assert self.x is not None
            samples = Samples(
                own=self.x[indices],
                partners=None if partners is None else self.x[partners],
            )
        labels = self.y[indices]
        if not self.split.is_image:
            inputs = (samples.own - self.mean) / self.std
            return Batch(inputs=inputs, labels=labels, targets=None, indices=indices)
        images, targets = self._finish(samples.own, keys), None
        if partners is not None and samples.partners is not None:
            # The partner is varied by a key of its own, which follows from the key of the sample.
            others = self._finish(samples.partners, hash32(keys + 1))
            images, kept = self._way_of(mix_images, len(keys))(
                images,
                others,
                keys,
                mixup=self.mixup,
                cutmix=self.cutmix,
                probability=self.augment.mix_probability,
            )
            targets = soft_targets(
                labels, self.y[partners], kept, num_classes=self.split.num_classes
            )
        if self.image_size is not None:
            images = fit_square(images, self.image_size)
        return Batch(inputs=images, labels=labels, targets=targets, indices=indices)

    def _finish(self, samples: Tensor, keys: Tensor) -> Tensor:
        finish = self._way_of(finish_images, len(keys))
        return finish(samples, keys, self.augment, self.mean, self.std)

    def _way_of(self, function: Callable[..., Any], num_samples: int) -> Callable[..., Any]:
        """Return `function` itself, or compiled where this is asked for and the batch is whole."""
        is_whole = num_samples == self.batch_size
        return _compiled(function) if self.is_compiled and is_whole else function

    def _read_ahead(self, steps: list[Tensor], epoch: int) -> Iterator[Batch]:
        """Yield batches of a set that is too large for the device, while a thread reads the next ones."""

        def load(rows: Tensor) -> Samples:
            partners = partner_rows(self.keys(rows, epoch), len(self.split)).numpy()
            return Samples(
                own=self._read(rows.numpy()),
                partners=self._read(partners) if self.augment.is_mixing else None,
            )

        with ThreadPoolExecutor(1) as reader:
            waiting: deque[Future[Samples]] = deque()
            for step, rows in enumerate(steps):
                while len(waiting) <= BATCHES_AHEAD and step + len(waiting) < len(steps):
                    waiting.append(reader.submit(load, steps[step + len(waiting)]))
                samples = waiting.popleft().result().to(self.device)
                indices = rows.to(self.device)
                yield self.assemble(indices, self.keys(indices, epoch), samples)

    def _read(self, rows: np.ndarray) -> Tensor:
        """Return raw samples on the host, pinned where a GPU will take them."""
        samples = self._rows(rows)
        return samples.pin_memory() if self.device.type == "cuda" else samples

    def _rows(self, rows: np.ndarray) -> Tensor:
        """Return raw samples on the host; taking rows by their numbers copies them, once."""
        return torch.from_numpy(np.asarray(self.split.x[rows]))


def _room_on(device: torch.device) -> int:
    """Return how many bytes a data set may take on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        free = psutil.virtual_memory().available
    return min(MOST_DEVICE_BYTES, int(SHARE_OF_FREE * free))


def finish_images(
    samples: UInt8[Tensor, "b height width channel"],
    keys: Int[Tensor, " b"],
    augment: AugmentConfig,
    mean: Float[Tensor, "channel 1 1"],
    std: Float[Tensor, "channel 1 1"],
) -> Float[Tensor, "b channel height width"]:
    """Return raw images augmented, normalized and perhaps erased."""
    images = (augment_images(samples, keys, augment) - mean) / std
    if augment.erase_probability > 0:
        images = erase(images, keys, probability=augment.erase_probability)
    return images


# Parts are compiled, and not the whole, which takes longer: own images and partners share one graph. Every config has a
# graph of its own, of which torch keeps eight a function: who trains with many configs calls `torch.compiler.reset`.
@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)
