"""The parts of a vision transformer, whoever wrote it: ours, timm's and transformers' are known."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lrformer.core.modes import evaluating
from lrformer.methods.base import BackboneMethod
from lrformer.models.residual_tokenizer import ResidualEmbed
from lrformer.models.tokenizer import ConvEmbed

PoolKind = Literal["token", "avg", "seq", "unknown"]
# Only these are read: what a subclass adds, such as a second head, would be left out of the bound without a word.
TIMM_CLASSES = ("VisionTransformer",)
TRANSFORMERS_CLASSES = (
    "ViTModel",
    "ViTForImageClassification",
    "DeiTModel",
    "DeiTForImageClassification",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockParts:
    """One transformer layer; `order` says where its norms stand."""

    name: str
    module: nn.Module
    order: Literal["pre", "post"]
    norm_1: nn.Module
    attention: nn.Module
    norm_2: nn.Module
    mlp: nn.Module
    scale_1: nn.Module | None = None
    scale_2: nn.Module | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Structure:
    """A whole transformer from input to logits."""

    embedding: nn.Module
    blocks: tuple[BlockParts, ...]
    final_norm: nn.Module | None
    pool: PoolKind
    pool_score: nn.Linear | None
    num_tokens: int
    num_pooled: int
    head: nn.Module


def read_structure(model: nn.Module) -> Structure | None:
    """Return the parts of a transformer, or None for a model that is none that we know."""
    backbone, head = split_method(model)
    for read in (_read_ours, _read_timm, _read_transformers):
        structure = read(backbone, head)
        if structure is not None:
            return structure
    return None


@torch.no_grad()
def with_tokens_of(structure: Structure, model: nn.Module, x: Tensor) -> Structure:
    """Return `structure` with as many tokens as the model makes of `x`: some models take images of any size."""
    seen: list[int] = []
    first = structure.blocks[0].module
    handle = first.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    try:
        with evaluating(model):
            model(x[:1])
    finally:
        handle.remove()
    more = seen[0] - structure.num_tokens
    return replace(
        structure, num_tokens=structure.num_tokens + more, num_pooled=structure.num_pooled + more
    )


def split_method(model: nn.Module) -> tuple[Any, nn.Module | None]:
    """Return backbone and head of a method; the model itself and None otherwise.

    Somebody's module with parts of these names may do anything between them.
    """
    return (model.backbone, model.head) if isinstance(model, BackboneMethod) else (model, None)


def _read_ours(model: Any, head: nn.Module | None) -> Structure | None:
    if not all(hasattr(model, name) for name in ("tokenizer", "blocks", "pool", "norm")):
        return None
    order = "pre" if type(model.blocks[0]).__name__ == "PreNormBlock" else "post"
    kind = model.pool.kind
    return Structure(
        embedding=model.tokenizer
        if isinstance(model.tokenizer, ConvEmbed | ResidualEmbed)
        else model.tokenizer.proj,
        blocks=_blocks(model.blocks, "blocks", order),
        final_norm=model.norm,
        pool=kind,
        pool_score=model.pool.score,
        num_tokens=model.pos_embed.shape[1],
        num_pooled=model.pos_embed.shape[1],
        head=head or model.head,
    )


def _read_timm(model: Any, head: nn.Module | None) -> Structure | None:
    if type(model).__name__ not in TIMM_CLASSES or not hasattr(model, "patch_embed"):
        return None
    absent = (
        *(getattr(model, name, None) for name in ("norm_pre", "attn_pool")),
        getattr(model.patch_embed, "norm", None),
    )
    if not all(map(_is_nothing, absent)) or type(model.blocks[0]).__name__ != "Block":
        return None
    known: dict[str, PoolKind] = {"token": "token", "avg": "avg"}
    fc_norm = getattr(model, "fc_norm", None)
    has_fc_norm = not _is_nothing(fc_norm)
    if has_fc_norm and not _is_nothing(model.norm):
        return None
    prefix = getattr(model, "num_prefix_tokens", 1)
    return Structure(
        embedding=model.patch_embed.proj,
        blocks=_blocks(model.blocks, "blocks", "pre"),
        final_norm=fc_norm if has_fc_norm else model.norm,
        pool=known.get(model.global_pool, "unknown"),
        pool_score=None,
        num_tokens=model.patch_embed.num_patches + prefix,
        num_pooled=model.patch_embed.num_patches,
        head=head or model.head,
    )


def _is_nothing(part: nn.Module | None) -> bool:
    return part is None or isinstance(part, nn.Identity)


def _read_transformers(model: Any, head: nn.Module | None) -> Structure | None:
    if type(model).__name__ not in TRANSFORMERS_CLASSES:
        return None
    base = getattr(model, "base_model", model)
    if not all(hasattr(base, name) for name in ("embeddings", "layers", "layernorm")):
        return None
    classifier = head or getattr(model, "classifier", None) or nn.Identity()
    prefix = "layers" if base is model else f"{model.base_model_prefix}.layers"
    blocks = tuple(
        BlockParts(
            name=f"{prefix}.{index}",
            module=layer,
            order="pre",
            norm_1=layer.layernorm_before,
            attention=layer.attention,
            norm_2=layer.layernorm_after,
            mlp=layer.mlp,
        )
        for index, layer in enumerate(base.layers)
    )
    return Structure(
        embedding=base.embeddings.patch_embeddings.projection,
        blocks=blocks,
        final_norm=base.layernorm,
        pool="token",
        pool_score=None,
        num_tokens=base.embeddings.position_embeddings.shape[1],
        num_pooled=1,
        head=classifier,
    )


def _blocks(blocks: Any, prefix: str, order: Literal["pre", "post"]) -> tuple[BlockParts, ...]:
    return tuple(
        BlockParts(
            name=f"{prefix}.{index}",
            module=block,
            order=order,
            norm_1=block.norm1,
            attention=block.attn,
            norm_2=block.norm2,
            mlp=block.mlp,
            scale_1=getattr(block, "ls1", None),
            scale_2=getattr(block, "ls2", None),
        )
        for index, block in enumerate(blocks)
    )
