"""The constants before and after the blocks: embedding, pooling and head."""

import math
from typing import Any, TypeGuard

from torch import nn

from lrformer.evaluation.bound_modules import (
    Constants,
    is_linear,
    linear_constants,
    same,
    unknown,
)
from lrformer.evaluation.bound_structure import Structure
from lrformer.evaluation.bound_types import is_exactly, part_beside
from lrformer.heads import FittedGP, RandomFeatureGP
from lrformer.heads.random_features import RandomFourierFeatures
from lrformer.lipschitz import layers as constants
from lrformer.lipschitz import spectral_norm
from lrformer.models.residual_tokenizer import ResidualEmbed
from lrformer.models.spectral import SpectralBatchNorm2d
from lrformer.models.tokenizer import ConvEmbed
from lrformer.models.wide_resnet import WideBlock

LAYER_NORM_EPS_OF_HEADS = 1e-5


def embedding_constants(module: Any) -> Constants:
    """Return the constants from the input in L2 to tokens, in both norms."""
    if is_linear(module):
        return same(spectral_norm(module.weight), "spectral norm, from the input in L2")
    if _is_convolution(module):
        if module.kernel_size != module.stride or module.dilation != (1, 1):
            return unknown(module)
        upper, _ = constants.patch_embedding(module.weight)
        return same(upper, "spectral norm of a patch, from the input in L2")
    if is_exactly(module, ConvEmbed) and all(map(_is_convolution, module.convs)):
        # A pixel is in at most four pooling windows.
        value = math.prod(2 * _convolution(conv) for conv in module.convs)
        return same(value, "sum of the taps' spectral norms, times 2 for overlapping pools")
    if _is_residual_embedding(module):
        value = _convolution(module.conv) * _batch_norm(module.bn) * _convolution(module.proj)
        value *= math.prod(map(_residual_block, module.blocks))
        return same(
            value, "sums of the taps' spectral norms, shortcut plus branch, running statistics"
        )
    return unknown(module)


def _is_convolution(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether this is a plain convolution that pads with zeros."""
    return is_exactly(module, nn.Conv2d) and getattr(module, "padding_mode", None) == "zeros"


def _is_batch_norm(module: nn.Module) -> bool:
    """Return whether this is a BatchNorm with statistics; a spectral one has at most the plain one's factor."""
    is_known = is_exactly(module, nn.BatchNorm2d, SpectralBatchNorm2d)
    return is_known and getattr(module, "running_var", None) is not None


def _is_residual_embedding(module: Any) -> bool:
    return (
        is_exactly(module, ResidualEmbed)
        and _is_convolution(module.conv)
        and _is_batch_norm(module.bn)
        and is_exactly(module.act, nn.ReLU)
        and _is_convolution(module.proj)
        and all(map(_is_residual_block, module.blocks))
    )


def _is_residual_block(block: Any) -> bool:
    return (
        is_exactly(block, WideBlock)
        and part_beside(block, "bn1", "conv1", "bn2", "conv2", "act", "shortcut") is None
        and all(map(_is_batch_norm, (block.bn1, block.bn2)))
        and all(map(_is_convolution, (block.conv1, block.conv2)))
        and is_exactly(block.act, nn.ReLU)
        and (block.shortcut is None or _is_convolution(block.shortcut))
    )


def _convolution(conv: nn.Conv2d) -> float:
    """Return a bound that holds for any size, padding by zeros and stride: the map is a sum of shifted matrices."""
    taps = conv.weight.detach().double().flatten(2).permute(2, 0, 1)
    return sum(spectral_norm(tap) for tap in taps)


def _batch_norm(norm: nn.BatchNorm2d) -> float:
    """Return the largest factor of a channel, in evaluation mode."""
    assert norm.running_var is not None
    factor = (norm.running_var.detach().double() + norm.eps).rsqrt()
    if norm.affine:
        factor = factor * norm.weight.detach().double()
    return float(factor.abs().max())


def _residual_block(block: WideBlock) -> float:
    branch = _convolution(block.conv1) * _batch_norm(block.bn2) * _convolution(block.conv2)
    activated = _batch_norm(block.bn1)
    if block.shortcut is None:
        return 1 + activated * branch
    shortcut = _convolution(block.shortcut)
    return (1.0 if block.raw_shortcut else activated) * shortcut + activated * branch


def pool_constants(structure: Structure, radius: float | None) -> Constants:
    """Return the constants of pooling tokens within `radius`; a mean is 1 here and better in F."""
    if structure.pool == "seq" and is_linear(structure.pool_score) and radius is not None:
        value = 1 + radius * spectral_norm(structure.pool_score.weight)
        return same(value, f"softmax pooling of tokens within {radius:.4g}")
    if structure.pool in {"token", "avg"}:
        return same(1.0, "counted in the product")
    return same(math.inf, "no constant is known for this pooling on unbounded tokens")


def head_constant(module: Any) -> Constants:
    """Return the L2 constant of what maps pooled features to logits."""
    if is_exactly(module, RandomFeatureGP) and is_linear(module.output):
        features = module.random_features
        if not is_exactly(features, RandomFourierFeatures):
            return unknown(features)
        value = features.amplitude * spectral_norm(features.weight)
        value *= spectral_norm(module.output.weight) / float(features.input_scale)
        if features.feature_scale == "layer_norm":
            value /= math.sqrt(LAYER_NORM_EPS_OF_HEADS)
        if math.isnan(value):
            return same(math.inf, "the scale of the random features is not calibrated yet")
        return same(value, "theorem 12, mean logits")
    if is_exactly(module, FittedGP) and is_linear(module.linear):
        return same(spectral_norm(module.linear.weight), "spectral norm, mean logits")
    return linear_constants(module)
