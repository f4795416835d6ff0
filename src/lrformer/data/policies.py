"""Automatic augmentation in batches: one of thirteen operations for each image, without a branch or a loop over images.

Every operation runs with neutral settings on the images that did not draw it, so that a batch takes the same kernels
whatever was drawn: nothing is read back from the device, and the whole can be captured in a CUDA graph.

Departs: Equalize, the fourteenth operation of TrivialAugment, is left out: its histograms cost more than all the rest.
Shears turn about the center of the image and not about a corner, so that less of it leaves the frame.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.data.channels import GRAY_WEIGHTS
from lrformer.data.streams import Stream, computed_once, sample_uniforms

OPERATIONS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "posterize",
    "solarize",
    "autocontrast",
    "brightness",
    "color",
    "contrast",
    "sharpness",
)
# AugMix must not train on what CIFAR-10-C tests: brightness and the three after it are left out.
NUM_AUGMIX_OPERATIONS = OPERATIONS.index("brightness")
NUM_CHAINS = 3
CHAIN_LENGTH = 3


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """How far each operation goes at magnitude one.

    Attributes:
        translate: a share of the side, and at most `most_pixels`.
        least_bits_lost: what Posterize takes at magnitude zero; `bits_lost` come on top.
    """

    shear: float
    translate: float
    degrees: float
    bits_lost: int
    factor: float
    most_pixels: float = math.inf
    least_bits_lost: int = 0


STANDARD = Ranges(shear=0.3, translate=0.45, degrees=30.0, bits_lost=4, factor=0.9)
WIDE = Ranges(shear=0.99, translate=1.0, degrees=135.0, bits_lost=6, factor=0.99, most_pixels=32.0)
AUGMIX = Ranges(
    shear=0.3, translate=1 / 3, degrees=30.0, bits_lost=4, factor=0.9, least_bits_lost=4
)


def trivial_augment(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"]
) -> Float[Tensor, "b channel height width"]:
    """Return each image after one operation of random strength, in the wide ranges."""
    choice, magnitude, sign = sample_uniforms(keys, Stream.POLICY, 3).unbind(dim=1)
    return apply_operation(images, _pick(choice, len(OPERATIONS)), magnitude, sign, WIDE)


def rand_augment(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],
    *,
    num_operations: int,
    magnitude: float,
) -> Float[Tensor, "b channel height width"]:
    """Return each image after `num_operations` operations of the given strength (0 to 1), one after the other."""
    drawn = sample_uniforms(keys, Stream.POLICY, 2 * num_operations)
    strength = torch.full_like(drawn[:, 0], magnitude)
    for step in range(num_operations):
        choice, sign = drawn[:, 2 * step], drawn[:, 2 * step + 1]
        images = apply_operation(images, _pick(choice, len(OPERATIONS)), strength, sign, STANDARD)
    return images


def aug_mix(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],
    *,
    magnitude: float,
) -> Float[Tensor, "b channel height width"]:
    """Return each image mixed with three chains of one to three operations; weights are Dirichlet(1), blend Beta(1, 1).

    The consistency loss of AugMix is not part of the data.
    """
    per_chain = 1 + 3 * CHAIN_LENGTH
    drawn = sample_uniforms(keys, Stream.POLICY, NUM_CHAINS * (1 + per_chain) + 1)
    blend, weights, rest = drawn[:, 0], drawn[:, 1 : 1 + NUM_CHAINS], drawn[:, 1 + NUM_CHAINS :]
    weights = -(1 - weights).log() + 1e-12
    weights = weights / weights.sum(dim=1, keepdim=True)
    mixed = torch.zeros_like(images)
    for chain, numbers in enumerate(rest.split(per_chain, dim=1)):
        length = _pick(numbers[:, 0], CHAIN_LENGTH)
        image = images
        for step in range(CHAIN_LENGTH):
            choice, strength, sign = numbers[:, 1 + 3 * step : 4 + 3 * step].unbind(dim=1)
            operation = _pick(choice, NUM_AUGMIX_OPERATIONS - 1) + 1
            operation = torch.where(step <= length, operation, 0)
            image = apply_operation(image, operation, magnitude * strength, sign, AUGMIX)
        mixed = mixed + _wide(weights[:, chain]) * image
    return torch.lerp(images, mixed, _wide(blend).expand_as(images))


def apply_operation(
    images: Float[Tensor, "b channel height width"],
    operation: Int[Tensor, " b"],
    magnitude: Float[Tensor, " b"],
    sign: Float[Tensor, " b"],
    ranges: Ranges,
) -> Float[Tensor, "b channel height width"]:
    """Return each image, in [0, 1], after its own operation.

    Args:
        operation: index into `OPERATIONS`.
        magnitude: from 0 (nothing happens, but that Solarize turns what is white, and for what `ranges` take at least) to 1
            (the end of the range).
        sign: in [0, 1); below one half the operation goes the other way, if it has one.
        ranges: how far magnitude one goes.
    """
    signed = torch.where(sign < 0.5, -magnitude, magnitude)

    def where(name: str, value: Tensor, neutral: float = 0.0) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), value, neutral)

    height, width = images.shape[2:]
    is_geometric = (operation >= 1) & (operation <= OPERATIONS.index("rotate"))
    warped = _warp(
        images,
        shear_x=where("shear_x", signed * ranges.shear),
        shear_y=where("shear_y", signed * ranges.shear),
        shift_x=where(
            "translate_x", 2 * signed * min(ranges.translate, ranges.most_pixels / width)
        ),
        shift_y=where(
            "translate_y", 2 * signed * min(ranges.translate, ranges.most_pixels / height)
        ),
        angle=where("rotate", signed * math.radians(ranges.degrees)),
    )
    images = torch.where(_wide(is_geometric), warped, images)
    bits_lost = ranges.least_bits_lost + (magnitude * ranges.bits_lost).round()
    images = _posterize(images, where("posterize", bits_lost))
    # A threshold above one leaves every pixel as it is.
    images = torch.where(images >= _wide(where("solarize", 1 - magnitude, 2.0)), 1 - images, images)
    stretched = _autocontrast(images)
    images = torch.where(_wide(operation == OPERATIONS.index("autocontrast")), stretched, images)
    return _blend(images, operation, 1 + signed * ranges.factor)


def _warp(
    images: Tensor,
    *,
    shear_x: Tensor,
    shear_y: Tensor,
    shift_x: Tensor,
    shift_y: Tensor,
    angle: Tensor,
) -> Tensor:
    """Return each image sheared, shifted (in half sides) or turned about its center; what comes in is black."""
    height, width = images.shape[2:]
    cosine, sine = angle.cos(), angle.sin()
    matrix = torch.stack(
        [
            torch.stack([cosine, (shear_x - sine) * (height / width), shift_x], dim=1),
            torch.stack([(shear_y + sine) * (width / height), cosine, shift_y], dim=1),
        ],
        dim=1,
    )
    grid = F.affine_grid(computed_once(matrix), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def _posterize(images: Tensor, bits_lost: Tensor) -> Tensor:
    """Return images with the lowest bits of every channel cleared; zero bits lost is the identity."""
    step = _wide(2.0**bits_lost)
    levels = ((images * 255).round() / step).floor() * step / 255
    return torch.where(_wide(bits_lost > 0), levels, images)


def _autocontrast(images: Tensor) -> Tensor:
    """Return images whose channels each reach from zero to one; a flat channel stays."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    span = high - low
    return torch.where(span > 0, (images - low) / span.clamp_min(1e-6), images)


def _blend(images: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Return images moved away from black, gray, their mean or their blur: brightness, color, contrast, sharpness."""
    gray = to_gray(images)
    mean = gray.mean(dim=(2, 3), keepdim=True)
    base = images
    for name, degenerate in (
        ("brightness", torch.zeros_like(mean)),
        ("color", gray),
        ("contrast", mean),
        ("sharpness", _smooth(images)),
    ):
        base = torch.where(_wide(operation == OPERATIONS.index(name)), degenerate, base)
    is_blend = operation >= OPERATIONS.index("brightness")
    moved = (base + _wide(factor) * (images - base)).clamp(0, 1)
    return torch.where(_wide(is_blend), moved, images)


def to_gray(
    images: Float[Tensor, "b channel height width"],
) -> Float[Tensor, "b 1 height width"]:
    """Return the luminance of RGB images (ITU-R 601); gray images as they are."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    of_red, of_green, of_blue = GRAY_WEIGHTS
    return of_red * red + of_green * green + of_blue * blue


def _smooth(images: Tensor) -> Tensor:
    """Return images under the 3x3 kernel of ones with five in the middle; the border stays."""
    out = images.clone()
    height, width = images.shape[2:]
    if height < 3 or width < 3:
        return out
    total = 4 * images[:, :, 1:-1, 1:-1]
    for row in range(3):
        for column in range(3):
            total = total + images[:, :, row : row + height - 2, column : column + width - 2]
    out[:, :, 1:-1, 1:-1] = total / 13
    return out


def _pick(uniform: Tensor, count: int) -> Tensor:
    """Return an integer from 0 to `count - 1` for every number in [0, 1)."""
    return computed_once((uniform * count).long())


def _wide(values: Tensor) -> Tensor:
    """Return one value a sample in the shape that broadcasts over its pixels."""
    return values[:, None, None, None]
