"""Backbones and classifiers: the vision transformer with any attention, and its presets."""

from lrformer.models.certified import CertifiedConfig, CertifiedTransformer
from lrformer.models.presets import PRESETS, create_model, list_models, override
from lrformer.models.residual_tokenizer import ResidualTokens
from lrformer.models.tokenizer import ConvTokens, PatchTokens, VectorTokens, resize_pos_embed
from lrformer.models.vit import VisionTransformer, ViTConfig
from lrformer.models.wide_resnet import WideResNet, WideResNetConfig

__all__ = [
    "PRESETS",
    "CertifiedConfig",
    "CertifiedTransformer",
    "ConvTokens",
    "PatchTokens",
    "ResidualTokens",
    "VectorTokens",
    "ViTConfig",
    "VisionTransformer",
    "WideResNet",
    "WideResNetConfig",
    "create_model",
    "list_models",
    "override",
    "resize_pos_embed",
]
