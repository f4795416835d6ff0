"""Mixup, CutMix and random erasing: what is put over a training image, and what its target becomes.

A partner is drawn from the whole training set by the key of the sample, and not from the batch: the same pair is mixed
whatever the batch holds and however many processes share it.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lrformer.data.streams import Stream, sample_bits, sample_uniforms

BETA_TABLE_SIZE = 4096
# The usual area of an erased rectangle, and how far it may be from a square.
ERASE_AREA = (0.02, 1 / 3)
ERASE_RATIO = 3.3


def partner_rows(keys: Int[Tensor, " b"], num_samples: int) -> Int[Tensor, " b"]:
    """Return the row of the training set that each sample is mixed with."""
    return sample_bits(keys, Stream.PARTNER, 1)[:, 0] % num_samples


def beta_quantiles(alpha: float, device: torch.device) -> Float[Tensor, " levels"] | None:
    """Return the quantiles of Beta(alpha, alpha) at even levels, on the device; None for an alpha of zero, which is off."""
    from scipy.special import betaincinv

    if alpha == 0:
        return None
    levels = torch.linspace(0, 1, BETA_TABLE_SIZE, dtype=torch.float64).numpy()
    return torch.from_numpy(betaincinv(alpha, alpha, levels)).float().to(device)


def beta_draws(
    uniform: Float[Tensor, " b"], quantiles: Float[Tensor, " levels"]
) -> Float[Tensor, " b"]:
    """Return numbers of the distribution that has these `beta_quantiles`, from uniform ones."""
    position = uniform * (BETA_TABLE_SIZE - 1)
    lower = position.long().clamp(max=BETA_TABLE_SIZE - 2)
    return torch.lerp(quantiles[lower], quantiles[lower + 1], position - lower)


def mix_images(
    images: Float[Tensor, "b channel height width"],
    partners: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],
    *,
    mixup: Float[Tensor, " levels"] | None,
    cutmix: Float[Tensor, " levels"] | None,
    probability: float = 1.0,
) -> tuple[Float[Tensor, "b channel height width"], Float[Tensor, " b"]]:
    """Return the images, mixed with this probability, and the share that each keeps of its own.

    `mixup` and `cutmix` are the `beta_quantiles` of either; with both a sample draws one of them.
    """
    choice, level, row, column, coin = sample_uniforms(keys, Stream.MIX, 5).unbind(dim=1)
    height, width = images.shape[2:]
    ones = torch.ones_like(level)
    blend = ones if mixup is None else beta_draws(level, mixup)
    if cutmix is not None:
        cut_share = 1 - beta_draws(level, cutmix)
        side = cut_share.sqrt()
        box = rectangles(row, column, side * height, side * width, height=height, width=width)
    else:
        box = torch.zeros(len(images), height, width, dtype=torch.bool, device=images.device)
    use_cut = choice < (1 if mixup is None else 0.5)
    use_cut = use_cut & (cutmix is not None)
    is_mixed = coin < probability
    blend = torch.where(use_cut | ~is_mixed, ones, blend)
    box = box & (use_cut & is_mixed)[:, None, None]
    # What falls outside the image is not pasted: the share is counted, not taken from the draw.
    kept = torch.where(use_cut, 1 - box.float().mean(dim=(1, 2)), blend)
    mixed = torch.lerp(partners, images, blend[:, None, None, None].expand_as(images))
    return torch.where(box[:, None], partners, mixed), kept


def soft_targets(
    labels: Int[Tensor, " b"],
    partner_labels: Int[Tensor, " b"],
    kept: Float[Tensor, " b"],
    *,
    num_classes: int,
) -> Float[Tensor, "b c"]:
    """Return the targets of mixed images: the share that is kept on the own label, the rest on the partner's."""
    targets = torch.zeros(len(labels), num_classes, device=labels.device)
    targets.scatter_add_(1, labels[:, None], kept[:, None])
    return targets.scatter_add_(1, partner_labels[:, None], 1 - kept[:, None])


def erase(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],
    *,
    probability: float,
) -> Float[Tensor, "b channel height width"]:
    """Return normalized images, each with this probability with a rectangle set to zero, the mean color.

    Departs: the published rectangle lies inside the image; this one may stick out, and covers .14 in the mean, not .18.
    """
    coin, area, ratio, row, column = sample_uniforms(keys, Stream.ERASE, 5).unbind(dim=1)
    height, width = images.shape[2:]
    smallest, largest = ERASE_AREA
    area = smallest + (largest - smallest) * area
    ratio = ERASE_RATIO ** (2 * ratio - 1)
    box = rectangles(
        row,
        column,
        (area / ratio).sqrt() * height,
        (area * ratio).sqrt() * width,
        height=height,
        width=width,
    )
    box = box & (coin < probability)[:, None, None]
    return images.masked_fill(box[:, None], 0.0)


def rectangles(
    row: Float[Tensor, " b"],
    column: Float[Tensor, " b"],
    box_height: Float[Tensor, " b"],
    box_width: Float[Tensor, " b"],
    *,
    height: int,
    width: int,
) -> Bool[Tensor, "b height width"]:
    """Return which pixels lie in a rectangle about a center that is anywhere in the image; it may stick out."""

    def inside(center: Tensor, size: Tensor, length: int) -> Tensor:
        first = (center * length - size / 2).round()
        position = torch.arange(length, device=center.device)
        return (position >= first[:, None]) & (position < (first + size.round())[:, None])

    return inside(row, box_height, height)[:, :, None] & inside(column, box_width, width)[:, None]
