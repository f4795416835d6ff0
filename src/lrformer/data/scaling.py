"""Finished images brought to the side that a model takes, on their device."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def fit_square(
    images: Float[Tensor, "b channel height width"], size: int
) -> Float[Tensor, "b channel size size"]:
    """Return the center square of every image, scaled to `size`: what is cut of image files as they are read."""
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    images = images[..., top : top + side, left : left + side]
    if side == size:
        return images
    return F.interpolate(images, (size, size), mode="bilinear", antialias=True)
