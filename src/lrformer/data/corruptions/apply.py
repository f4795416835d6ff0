"""One corruption by name and severity, on a batch of tensors or on a whole split."""

import dataclasses
import zlib
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.core import ConfigError, Registry
from lrformer.data.arrays import Split
from lrformer.data.corruptions.blur import defocus_blur, gaussian_blur, motion_blur, zoom_blur
from lrformer.data.corruptions.digital import elastic_transform, jpeg_compression, pixelate
from lrformer.data.corruptions.light import brightness, contrast, fog, saturate
from lrformer.data.corruptions.noise import (
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
)
from lrformer.data.streams import sample_keys

SEVERITIES = (1, 2, 3, 4, 5)
IMAGES_AT_A_TIME = 512

Corruption = Callable[[Tensor, Tensor, int], Tensor]
CORRUPTIONS: Registry[Corruption] = Registry("corruption")
for _corruption in (
    gaussian_noise,
    shot_noise,
    impulse_noise,
    speckle_noise,
    gaussian_blur,
    defocus_blur,
    motion_blur,
    zoom_blur,
    fog,
    brightness,
    contrast,
    saturate,
    elastic_transform,
    pixelate,
    jpeg_compression,
):
    CORRUPTIONS.register(_corruption.__name__)(_corruption)


def list_corruptions() -> list[str]:
    """Return the names of the corruptions."""
    return CORRUPTIONS.names()


def corrupt(
    images: Float[Tensor, "b channel height width"],
    kind: str,
    *,
    severity: int,
    indices: Int[Tensor, " b"],
    seed: int = 0,
) -> Float[Tensor, "b channel height width"]:
    """Return images in [0, 1] after one corruption; a sample is corrupted alike in every batch and on every device.

    Args:
        severity: 1 (weak) to 5 (strong).
        indices: which samples these are, for what is random about them.
    """
    corruption = CORRUPTIONS[kind]
    if severity not in SEVERITIES:
        raise ConfigError(f"severity ({severity}) must be one of 1 to 5.")
    # The kind is part of the seed: two kinds of noise must not fall on the same pixels.
    keys = sample_keys(indices, seed=seed, epoch=zlib.crc32(kind.encode()))
    return corruption(images, keys, severity).clamp(0, 1)


def corrupt_split(
    split: Split,
    kind: str,
    *,
    severity: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Split:
    """Return a split whose images are corrupted, as uint8; labels, names and statistics stay."""
    if not split.is_image:
        raise ConfigError(f"{split.name} holds points, not images; only images can be corrupted.")
    out = np.empty(split.x.shape, dtype=np.uint8)
    for start in range(0, len(split), IMAGES_AT_A_TIME):
        block = np.array(split.x[start : start + IMAGES_AT_A_TIME])
        pixels = torch.from_numpy(block).to(device).permute(0, 3, 1, 2).float() / 255
        indices = torch.arange(start, start + len(block), device=device)
        done = corrupt(pixels, kind, severity=severity, indices=indices, seed=seed)
        levels = (done * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        out[start : start + len(block)] = levels.cpu().numpy()
    return dataclasses.replace(split, x=out, name=f"{split.name}-{kind}-{severity}")
