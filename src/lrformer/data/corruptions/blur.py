"""Four kinds of blur: by a Gaussian, out of focus, by motion, and by zooming in."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.data.streams import Stream, sample_uniforms

GAUSSIAN_STD = (0.4, 0.6, 0.7, 0.8, 1.0)
# Radius of the disk, and standard deviation of what smooths its edge.
DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
# Standard deviation along the path, in pixels.
MOTION_STD = (1.0, 1.5, 2.0, 2.0, 2.5)
# In standard deviations; what is further along the path has no weight to speak of.
MOTION_REACH = 4
LARGEST_ZOOM = (1.06, 1.11, 1.16, 1.21, 1.26)
ZOOM_STEPS = 9


def _convolve(images: Tensor, kernel: Tensor) -> Tensor:
    """Return every channel under the same odd, square kernel, with the border mirrored."""
    channels, side = images.shape[1], kernel.shape[0]
    weight = kernel.to(images).expand(channels, 1, side, side)
    reach = side // 2
    mode = "reflect" if reach < min(images.shape[2:]) else "replicate"
    return F.conv2d(F.pad(images, (reach,) * 4, mode=mode), weight, groups=channels)


def _gaussian_kernel(std: float, reach: int) -> Tensor:
    """Return a normalized Gaussian on a square of `2 * reach + 1` pixels."""
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / std) ** 2)
    kernel = line[:, None] * line
    return kernel / kernel.sum()


def gaussian_blur(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],  # noqa: ARG001 - every corruption has one signature
    severity: int,
) -> Float[Tensor, "b channel height width"]:
    """Return images under a Gaussian."""
    std = GAUSSIAN_STD[severity - 1]
    return _convolve(images, _gaussian_kernel(std, math.ceil(3 * std)))


def defocus_blur(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],  # noqa: ARG001 - every corruption has one signature
    severity: int,
) -> Float[Tensor, "b channel height width"]:
    """Return images under a disk with a soft edge, as a lens out of focus makes it."""
    radius, edge = DEFOCUS[severity - 1]
    reach = 8
    position = torch.arange(-reach, reach + 1, dtype=torch.float32)
    disk = (position[:, None] ** 2 + position**2 <= radius**2).float()
    soft = F.conv2d(F.pad(disk[None, None], (1, 1, 1, 1)), _gaussian_kernel(edge, 1)[None, None])[
        0, 0
    ]
    return _convolve(images, soft / soft.sum())


def motion_blur(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"], severity: int
) -> Float[Tensor, "b channel height width"]:
    """Return images smeared to one side along a line, at most 45 degrees from level; the direction belongs to the sample.

    Departs: the published code shifts whole pixels; here the path is sampled between them.
    """
    angle = math.pi / 2 * (sample_uniforms(keys, Stream.NOISE, 1)[:, 0] - 0.5)
    std = MOTION_STD[severity - 1]
    height, width = images.shape[2:]
    smeared, total = torch.zeros_like(images), 0.0
    for step in range(math.ceil(MOTION_REACH * std) + 1):
        weight = math.exp(-0.5 * (step / std) ** 2)
        shift_x = 2 * step * angle.cos() / width
        shift_y = 2 * step * angle.sin() / height
        smeared = smeared + weight * _move(images, torch.ones_like(angle), shift_x, shift_y)
        total += weight
    return smeared / total


def zoom_blur(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"], severity: int
) -> Float[Tensor, "b channel height width"]:
    """Return the mean of images zoomed in by more and more."""
    zero = torch.zeros(len(keys), device=images.device)
    zooms = torch.linspace(1, LARGEST_ZOOM[severity - 1], ZOOM_STEPS).tolist()
    layers = [_move(images, torch.ones_like(zero) / zoom, zero, zero) for zoom in zooms]
    return torch.stack(layers).mean(dim=0)


def _move(images: Tensor, scale: Tensor, shift_x: Tensor, shift_y: Tensor) -> Tensor:
    """Return images scaled about the center and shifted (in half sides), with the border mirrored."""
    zero = torch.zeros_like(scale)
    matrix = torch.stack(
        [torch.stack([scale, zero, shift_x], dim=1), torch.stack([zero, scale, shift_y], dim=1)],
        dim=1,
    )
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
