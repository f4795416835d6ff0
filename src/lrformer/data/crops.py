"""Where a training image is looked at: shifted with padding, cut out and scaled, mirrored."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lrformer.data.streams import Stream, computed_once, sample_uniforms


def random_flips(keys: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
    """Return which samples are mirrored: half of them."""
    return sample_uniforms(keys, Stream.FLIP, 1)[:, 0] < 0.5


def shift_and_flip(
    images: UInt8[Tensor, "b height width channel"],
    keys: Int[Tensor, " b"],
    *,
    padding: int,
    flip: bool,
) -> UInt8[Tensor, "b height width channel"]:
    """Return each image cut at random from itself with `padding` black pixels around it, perhaps mirrored."""
    batch, height, width, _ = images.shape
    device = images.device
    offsets = (sample_uniforms(keys, Stream.CROP, 2) * (2 * padding + 1)).long() - padding
    rows = torch.arange(height, device=device) + offsets[:, :1]
    columns = torch.arange(width, device=device) + offsets[:, 1:]
    if flip:
        columns = torch.where(random_flips(keys)[:, None], columns.flip(1), columns)
    row_inside = (rows >= 0) & (rows < height)
    column_inside = (columns >= 0) & (columns < width)
    inside = row_inside[:, :, None] & column_inside[:, None, :]
    each = torch.arange(batch, device=device)[:, None, None]
    cut = images[each, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None]]
    return cut * inside[..., None]


def resized_crop(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],
    *,
    min_scale: float,
    flip: bool,
) -> Float[Tensor, "b channel height width"]:
    """Return a random part of each image, of `min_scale` to all of its area, scaled back to the whole."""
    area, ratio, left, top = sample_uniforms(keys, Stream.CROP, 4).unbind(dim=1)
    area = min_scale + (1 - min_scale) * area
    # The usual range of width over height, 3/4 to 4/3, even in its logarithm; less where no such part would fit.
    widest = (-area.log()).clamp(max=math.log(4 / 3))
    ratio = torch.exp((2 * ratio - 1) * widest)
    width = (area * ratio).sqrt().clamp(max=1)
    height = (area / ratio).sqrt().clamp(max=1)
    sign = torch.ones_like(width)
    if flip:
        sign = torch.where(random_flips(keys), -sign, sign)
    zero = torch.zeros_like(width)
    matrix = torch.stack(
        [
            torch.stack([sign * width, zero, (2 * left - 1) * (1 - width)], dim=1),
            torch.stack([zero, height, (2 * top - 1) * (1 - height)], dim=1),
        ],
        dim=1,
    )
    grid = F.affine_grid(computed_once(matrix), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
