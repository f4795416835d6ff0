"""Four kinds of bad light: fog, too bright, too flat, too pale."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.data.policies import to_gray
from lrformer.data.streams import Stream, sample_normals

# How much fog, and how fast its detail fades: amplitude over frequency to this power.
FOG = ((0.2, 1.5), (0.5, 1.5), (0.75, 1.4), (1.0, 1.25), (1.5, 1.1))
BRIGHTER_BY = (0.05, 0.1, 0.15, 0.2, 0.3)
CONTRAST_KEPT = (0.75, 0.5, 0.4, 0.3, 0.15)
COLOR_KEPT = (0.7, 0.5, 0.3, 0.15, 0.0)


def fog(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"], severity: int
) -> Float[Tensor, "b channel height width"]:
    """Return images behind a cloud, and dimmed so that the brightest point stays as bright.

    Departs: the cloud is noise with a falling spectrum and not a midpoint fractal, so that one transform makes a batch.
    """
    amount, decay = FOG[severity - 1]
    height, width = images.shape[2:]
    noise = sample_normals(keys, Stream.FIELD, height * width).view(-1, height, width)
    down = torch.fft.fftfreq(height, device=images.device)[:, None] * height
    across = torch.fft.rfftfreq(width, device=images.device) * width
    frequency = (down.square() + across.square()).sqrt()
    spectrum = torch.fft.rfft2(noise) / frequency.clamp_min(1) ** decay
    cloud = torch.fft.irfft2(spectrum, s=(height, width))
    low, high = cloud.amin(dim=(1, 2), keepdim=True), cloud.amax(dim=(1, 2), keepdim=True)
    cloud = ((cloud - low) / (high - low).clamp_min(1e-6))[:, None]
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    return (images + amount * cloud) * brightest / (brightest + amount).clamp_min(1e-6)


def brightness(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],  # noqa: ARG001 - every corruption has one signature
    severity: int,
) -> Float[Tensor, "b channel height width"]:
    """Return images whose value (the largest channel) is raised, hue and saturation kept."""
    value = images.amax(dim=1, keepdim=True)
    raised = (value + BRIGHTER_BY[severity - 1]).clamp(max=1)
    return torch.where(value > 0, images / value.clamp_min(1e-6), 1.0) * raised


def contrast(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],  # noqa: ARG001 - every corruption has one signature
    severity: int,
) -> Float[Tensor, "b channel height width"]:
    """Return images drawn towards the mean of each channel."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + CONTRAST_KEPT[severity - 1] * (images - mean)


def saturate(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],  # noqa: ARG001 - every corruption has one signature
    severity: int,
) -> Float[Tensor, "b channel height width"]:
    """Return images drawn towards gray.

    Departs: the published table first fades and then oversaturates, so that its severities are no scale; here the color
    fades in steps. A gray image has no color to lose.
    """
    gray = to_gray(images)
    return gray + COLOR_KEPT[severity - 1] * (images - gray)
