"""Four kinds of noise, each drawn by the key of its sample."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.data.streams import Stream, sample_normals, sample_uniforms

GAUSSIAN_STD = (0.04, 0.06, 0.08, 0.09, 0.10)
PHOTONS = (500.0, 250.0, 100.0, 75.0, 50.0)
IMPULSE_SHARE = (0.01, 0.02, 0.03, 0.05, 0.07)
SPECKLE_STD = (0.06, 0.1, 0.12, 0.16, 0.2)


def _normals(images: Tensor, keys: Tensor) -> Tensor:
    """Return one standard normal number for every entry of the images."""
    return sample_normals(keys, Stream.NOISE, images[0].numel()).view_as(images)


def gaussian_noise(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"], severity: int
) -> Float[Tensor, "b channel height width"]:
    """Return images with noise of the same strength everywhere."""
    return images + GAUSSIAN_STD[severity - 1] * _normals(images, keys)


def shot_noise(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"], severity: int
) -> Float[Tensor, "b channel height width"]:
    """Return images with the noise of counting photons: its variance grows with the light.

    Departs: the normal limit of the Poisson distribution, which a key can draw without rejection.
    """
    return images + (images / PHOTONS[severity - 1]).sqrt() * _normals(images, keys)


def impulse_noise(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"], severity: int
) -> Float[Tensor, "b channel height width"]:
    """Return images with a share of their entries set to black or white."""
    drawn = sample_uniforms(keys, Stream.NOISE, images[0].numel()).view_as(images)
    share = IMPULSE_SHARE[severity - 1]
    images = torch.where(drawn < share / 2, torch.zeros_like(images), images)
    return torch.where((drawn >= share / 2) & (drawn < share), torch.ones_like(images), images)


def speckle_noise(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"], severity: int
) -> Float[Tensor, "b channel height width"]:
    """Return images with noise in proportion to their light."""
    return images * (1 + SPECKLE_STD[severity - 1] * _normals(images, keys))
