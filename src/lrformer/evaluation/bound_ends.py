"""The constants before and after the blocks: embedding, pooling and head."""

import math

from torch import nn

from lrformer.evaluation.bound_modules import Constants, linear_constants, same, unknown
from lrformer.evaluation.bound_structure import Structure
from lrformer.heads import FittedGP, RandomFeatureGP
from lrformer.lipschitz import layers as constants
from lrformer.lipschitz import spectral_norm
from lrformer.models.residual_tokenizer import ResidualEmbed
from lrformer.models.tokenizer import ConvEmbed
from lrformer.models.wide_resnet import WideBlock

LAYER_NORM_EPS_OF_HEADS = 1e-5


def embedding_constants(module: nn.Module) -> Constants:
    """Return the constants from the input in L2 to tokens, in both norms."""
    if isinstance(module, nn.Linear):
        return same(spectral_norm(module.weight), "spectral norm, from the input in L2")
    if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride:
        upper, _ = constants.patch_embedding(module.weight)
        return same(upper, "spectral norm of a patch, from the input in L2")
    if isinstance(module, ConvEmbed):
        value = 1.0
        for conv in module.convs:
            assert isinstance(conv, nn.Conv2d)
            # A pixel is in at most four pooling windows.
            value *= 2 * _convolution(conv)
        return same(value, "sum of the taps' spectral norms, times 2 for overlapping pools")
    if isinstance(module, ResidualEmbed):
        value = _convolution(module.conv) * _batch_norm(module.bn) * _convolution(module.proj)
        for block in module.blocks:
            assert isinstance(block, WideBlock)
            value *= _residual_block(block)
        return same(
            value, "sums of the taps' spectral norms, shortcut plus branch, running statistics"
        )
    return unknown(module)


def _convolution(conv: nn.Conv2d) -> float:
    """Return a bound that holds for any size, padding by zeros and stride: the map is a sum of shifted matrices."""
    taps = conv.weight.detach().double().flatten(2).permute(2, 0, 1)
    return sum(spectral_norm(tap) for tap in taps)


def _batch_norm(norm: nn.BatchNorm2d) -> float:
    """Return the largest factor of a channel, in evaluation mode."""
    assert norm.running_var is not None
    spread = (norm.running_var.detach().double() + norm.eps).sqrt()
    return float((norm.weight.detach().double() / spread).abs().max())


def _residual_block(block: WideBlock) -> float:
    branch = _convolution(block.conv1) * _batch_norm(block.bn2) * _convolution(block.conv2)
    activated = _batch_norm(block.bn1)
    if block.shortcut is None:
        return 1 + activated * branch
    return activated * (_convolution(block.shortcut) + branch)


def pool_constants(structure: Structure, radius: float | None) -> Constants:
    """Return the constants of pooling tokens within `radius`; a mean is 1 here and better in F."""
    if structure.pool == "seq" and structure.pool_score is not None and radius is not None:
        value = 1 + radius * spectral_norm(structure.pool_score.weight)
        return same(value, f"softmax pooling of tokens within {radius:.4g}")
    if structure.pool in {"token", "avg"}:
        return same(1.0, "counted in the product")
    return same(math.inf, "no constant is known for this pooling on unbounded tokens")


def head_constant(module: nn.Module) -> Constants:
    """Return the L2 constant of what maps pooled features to logits."""
    if isinstance(module, RandomFeatureGP):
        features = module.random_features
        value = features.amplitude * spectral_norm(features.weight)
        value *= spectral_norm(module.output.weight) / float(features.input_scale)
        if features.feature_scale == "layer_norm":
            value /= math.sqrt(LAYER_NORM_EPS_OF_HEADS)
        if math.isnan(value):
            return same(math.inf, "the scale of the random features is not calibrated yet")
        return same(value, "theorem 12, mean logits")
    if isinstance(module, FittedGP):
        return same(spectral_norm(module.linear.weight), "spectral norm, mean logits")
    return linear_constants(module)
