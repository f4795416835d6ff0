"""Three kinds of digital damage: bent, coarse, and compressed."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.data.streams import Stream, sample_normals

# Root mean square of the displacement along each axis, in pixels of a 32-pixel image, at the points of the grid.
ELASTIC_PIXELS = (0.4, 0.6, 0.8, 1.0, 1.3)
ELASTIC_GRID = 6
PIXELS_KEPT = (0.95, 0.9, 0.85, 0.75, 0.65)
JPEG_QUALITY = (80, 65, 58, 50, 40)
BLOCK = 8
# The two example tables of the JPEG standard (ITU-T T.81, annex K), for luminance and for color.
LUMINANCE_TABLE = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56), (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99),
)  # fmt: skip
COLOR_TABLE = (
    (17, 18, 24, 47, 99, 99, 99, 99), (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99), (47, 66, 99, 99, 99, 99, 99, 99),
    *(((99,) * 8),) * 4,
)  # fmt: skip
YCBCR = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))


def elastic_transform(
    images: Float[Tensor, "b channel height width"], keys: Int[Tensor, " b"], severity: int
) -> Float[Tensor, "b channel height width"]:
    """Return images bent by a smooth random field that belongs to the sample.

    Departs: the field is interpolated from a coarse grid; the affine part of the published code is left out.
    """
    batch, _, height, width = images.shape
    coarse = sample_normals(keys, Stream.FIELD, 2 * ELASTIC_GRID**2)
    coarse = coarse.view(batch, 2, ELASTIC_GRID, ELASTIC_GRID)
    field = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)
    field = field * (2 * ELASTIC_PIXELS[severity - 1] / 32)
    still = torch.eye(2, 3, device=images.device).expand(batch, 2, 3)
    grid = F.affine_grid(still, list(images.shape), align_corners=False)
    moved = grid + field.permute(0, 2, 3, 1)
    return F.grid_sample(images, moved, padding_mode="reflection", align_corners=False)


def pixelate(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],  # noqa: ARG001 - every corruption has one signature
    severity: int,
) -> Float[Tensor, "b channel height width"]:
    """Return images averaged onto fewer pixels and spread out again, cut pixels counted in part both ways.

    Departs: the published code repeats the nearest pixel, which shifts edges by amounts that do not rise with severity.
    """
    kept = PIXELS_KEPT[severity - 1]
    down, across = (_coarse(length, max(1, int(length * kept))) for length in images.shape[2:])
    return down.to(images) @ images @ across.to(images).T


def _coarse(length: int, num_boxes: int) -> Tensor:
    """Return the matrix that averages `length` pixels over equal boxes and spreads the means over the pixels again."""
    edges = torch.linspace(0, length, num_boxes + 1)
    first = torch.arange(length)
    overlap = torch.minimum(edges[1:, None], first + 1) - torch.maximum(edges[:-1, None], first)
    shared = overlap.clamp_min(0)
    return shared.T @ shared * (num_boxes / length)


def jpeg_compression(
    images: Float[Tensor, "b channel height width"],
    keys: Int[Tensor, " b"],  # noqa: ARG001 - every corruption has one signature
    severity: int,
) -> Float[Tensor, "b channel height width"]:
    """Return images after the lossy part of JPEG: the cosine transform of 8x8 blocks, rounded by the standard's tables.

    Departs: color is not subsampled, and nothing is written, so that a batch needs no codec.
    """
    channels, height, width = images.shape[1:]
    levels = images * 255
    if channels == 3:
        levels = torch.einsum("ij,bjhw->bihw", torch.tensor(YCBCR).to(levels), levels)
        levels = levels - torch.tensor([128.0, 0, 0]).to(levels).view(3, 1, 1)
    else:
        levels = levels - 128
    pad = (0, -width % BLOCK, 0, -height % BLOCK)
    levels = F.pad(levels, pad, mode="replicate")
    steps = _quantization(JPEG_QUALITY[severity - 1], channels).to(levels)
    basis = _cosine_basis().to(levels)
    blocks = levels.unfold(2, BLOCK, BLOCK).unfold(3, BLOCK, BLOCK)
    spectrum = basis @ blocks @ basis.T
    rounded = (spectrum / steps).round() * steps
    blocks = basis.T @ rounded @ basis
    levels = blocks.transpose(3, 4).reshape(levels.shape)[:, :, :height, :width]
    if channels == 3:
        levels = levels + torch.tensor([128.0, 0, 0]).to(levels).view(3, 1, 1)
        back = torch.linalg.inv(torch.tensor(YCBCR)).to(levels)
        return torch.einsum("ij,bjhw->bihw", back, levels) / 255
    return (levels + 128) / 255


def _quantization(quality: int, channels: int) -> Tensor:
    """Return the step of every coefficient at this quality, by the scaling that the usual encoders share."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    tables = [LUMINANCE_TABLE, COLOR_TABLE, COLOR_TABLE][:channels]
    steps = ((torch.tensor(tables, dtype=torch.float32) * scale + 50) / 100).floor().clamp(1, 255)
    return steps[:, None, None]


def _cosine_basis() -> Tensor:
    """Return the orthonormal matrix of the discrete cosine transform of eight values."""
    k, n = torch.arange(BLOCK)[:, None], torch.arange(BLOCK)
    basis = torch.cos(math.pi * (2 * n + 1) * k / (2 * BLOCK)) * math.sqrt(2 / BLOCK)
    basis[0] /= math.sqrt(2)
    return basis
