"""Small models of other packages, with weights that make their attention matter."""

from typing import Any

import torch
from torch import Tensor, nn

from lrformer.core import make_generator

TIMM_MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {},
    "deit3_small_patch16_224": {},
    "deit_tiny_distilled_patch16_224": {},
    "vit_betwixt_patch16_reg4_gap_256": {"embed_dim": 96, "num_heads": 4},
    "vit_base_patch16_siglip_gap_224": {"embed_dim": 96, "num_heads": 4},
}


TINY_TRANSFORMERS = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 8,
    "patch_size": 4,
}


def timm_model(name: str, **kwargs: Any) -> nn.Module:
    """Return a shallow timm model for 64-pixel pictures, its weights spread out."""
    import timm

    settings = {"num_classes": 7, "img_size": 64, "depth": 2, **TIMM_MODELS.get(name, {}), **kwargs}
    return spread(timm.create_model(name, pretrained=False, **settings).eval())


def split_qkv_model(**kwargs: Any) -> nn.Module:
    """Return a timm Eva without rotary embeddings, whose q, k and v are three Linears."""
    from timm.models.eva import Eva

    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
    settings |= {"use_rot_pos_emb": False, "qkv_fused": False, "num_classes": 7}
    return spread(Eva(**{**settings, **kwargs}).eval())


def vit_classifier(**kwargs: Any) -> Any:
    """Return transformers' ViT classifier, small."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = ViTConfig(
        image_size=32, patch_size=8, intermediate_size=48, num_labels=5, **{**sizes, **kwargs}
    )
    return spread(ViTForImageClassification(config).eval())


def bert_classifier(**kwargs: Any) -> Any:
    """Return transformers' BERT classifier, small."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=50, intermediate_size=48, num_labels=3, **{**sizes, **kwargs})
    return spread(BertForSequenceClassification(config).eval())


def spread(model: Any) -> Any:
    """Return `model` in float64 with every weight redrawn: no bias zero, no attention near uniform."""
    generator = make_generator(7)
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.ndim >= 2:
                parameter.copy_(1.5 * noise / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_(parameter.clamp(0, 1) + 0.3 * noise)
    return model


def pictures(batch: int = 3, size: int = 64) -> Tensor:
    """Return noise to look at."""
    return torch.randn(batch, 3, size, size, generator=make_generator(3), dtype=torch.float64)


def texts(batch: int = 3, length: int = 9) -> Tensor:
    """Return random words."""
    return torch.randint(1, 50, (batch, length), generator=make_generator(3))


def logits(output: Any) -> Tensor:
    """Return the logits of a model of either package."""
    return output if isinstance(output, Tensor) else output.logits
