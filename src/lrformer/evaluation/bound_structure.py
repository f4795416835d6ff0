"""The parts of a vision transformer, whoever wrote it: ours, timm's and transformers' are known."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lrformer.core.modes import evaluating
from lrformer.evaluation.bound_types import (
    Kind,
    full_name,
    is_exactly,
    is_nothing,
    part_beside,
    uncompiled,
)
from lrformer.methods.base import BackboneMethod
from lrformer.models.block import PostNormBlock, PreNormBlock
from lrformer.models.certified import CertifiedBlock, CertifiedTransformer
from lrformer.models.certified_branches import AnchoredAttention, CenteredMlp
from lrformer.models.pool import Pool
from lrformer.models.tokenizer import PatchEmbed, VectorEmbed
from lrformer.models.vit import VisionTransformer

Order = Literal["pre", "post"]
PoolKind = Literal["token", "avg", "seq", "unknown"]
# Only these are read: what a subclass adds, such as a second head, would be left out of the bound without a word.
_TIMM = "timm.models.vision_transformer.VisionTransformer"
_TIMM_EMBEDDING = "timm.layers.patch_embed.PatchEmbed"
_TIMM_BLOCK = "timm.models.vision_transformer.Block"
_VIT, _DEIT = (
    "transformers.models.vit.modeling_vit.ViT",
    "transformers.models.deit.modeling_deit.DeiT",
)
# Without a head: their output is all tokens, of which the class token is what a head would read.
HEADLESS_CLASSES = (f"{_VIT}Model", f"{_DEIT}Model")
_CLASSIFIERS = (f"{_VIT}ForImageClassification", f"{_DEIT}ForImageClassification")


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockParts:
    """One transformer layer; `order` says where its norms stand."""

    name: str
    module: nn.Module
    order: Order
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


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A model that cannot be read, and why."""

    reason: str


class _UnknownPart(Exception):  # noqa: N818
    """A part that is not known stands where the map of the whole depends on it."""


def read_structure(model: nn.Module) -> Structure | Unread:
    """Return the parts of a transformer, or what in it is none that we know."""
    try:
        backbone, head = split_method(model)
        for read in (_read_ours, _read_timm, _read_transformers):
            structure = read(backbone, head)
            if structure is not None and structure.blocks:
                return structure
    except _UnknownPart as unknown:
        return Unread(reason=str(unknown))
    return Unread(reason=f"no theorem here covers {type(backbone).__name__}")


def is_certified(model: nn.Module) -> bool:
    """Return whether this is a certified model whose parts are those that its certificate speaks of."""
    backbone, head = split_method(model)
    return (
        is_exactly(backbone, CertifiedTransformer)
        and part_beside(backbone, "tokenizer", "blocks", "head") is None
        and is_exactly(backbone.tokenizer, PatchEmbed, VectorEmbed)
        and all(
            is_exactly(block, CertifiedBlock)
            and is_exactly(block.attn, AnchoredAttention)
            and is_exactly(block.mlp, CenteredMlp)
            for block in backbone.blocks
        )
        and (head is None or is_nothing(backbone.head))
    )


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
    """Return backbone and head of a method of this package; the model itself and None otherwise.

    Somebody's module with parts of these names may do anything between them.
    """
    is_ours = full_name(model).startswith("lrformer.methods.")
    if is_ours and isinstance(model, BackboneMethod):
        return uncompiled(model.backbone), model.head
    return model, None


def _read_ours(model: Any, head: nn.Module | None) -> Structure | None:
    if not is_exactly(model, VisionTransformer):
        return None
    _require_parts(model, "tokenizer", "blocks", "norm", "pool", "head")
    _require(model.pool, Pool)
    tokenizer = model.tokenizer
    return Structure(
        embedding=tokenizer.proj if is_exactly(tokenizer, PatchEmbed, VectorEmbed) else tokenizer,
        blocks=_blocks(model.blocks),
        final_norm=model.norm,
        pool=model.pool.kind,
        pool_score=model.pool.score,
        num_tokens=model.pos_embed.shape[1],
        num_pooled=model.pos_embed.shape[1],
        head=_head(model.head, head),
    )


def _read_timm(model: Any, head: nn.Module | None) -> Structure | None:
    if not is_exactly(model, _TIMM):
        return None
    _require_parts(model, "patch_embed", "blocks", "norm", "fc_norm", "head")
    if not is_nothing(model.norm) and not is_nothing(model.fc_norm):
        raise _UnknownPart("no theorem here covers a norm before the pooling and one after it")
    # Others, such as those of hybrids, do more than their projection.
    embed = model.patch_embed
    is_plain = is_exactly(embed, _TIMM_EMBEDDING) and part_beside(embed, "proj") is None
    known: dict[str, PoolKind] = {"token": "token", "avg": "avg"}
    return Structure(
        embedding=embed.proj if is_plain else embed,
        blocks=_blocks(model.blocks),
        final_norm=model.norm if is_nothing(model.fc_norm) else model.fc_norm,
        pool=known.get(model.global_pool, "unknown"),
        pool_score=None,
        num_tokens=embed.num_patches + model.num_prefix_tokens,
        num_pooled=embed.num_patches,
        head=_head(model.head, head),
    )


def _read_transformers(model: Any, head: nn.Module | None) -> Structure | None:
    if not is_exactly(model, *HEADLESS_CLASSES, *_CLASSIFIERS):
        return None
    base = model.base_model
    # A pooler makes another output, beside the tokens.
    _require_parts(base, "embeddings", "layers", "layernorm", "pooler")
    _require(base, *HEADLESS_CLASSES)
    if not hasattr(base, "layers"):
        raise _UnknownPart("no theorem here covers this version of transformers")
    embeddings = base.embeddings
    _require(embeddings, f"{_VIT}Embeddings", f"{_DEIT}Embeddings")
    _require(embeddings.patch_embeddings, f"{_VIT}PatchEmbeddings", f"{_DEIT}PatchEmbeddings")
    prefix = "layers" if base is model else f"{model.base_model_prefix}.layers"
    return Structure(
        embedding=embeddings.patch_embeddings.projection,
        blocks=tuple(
            _transformers_block(f"{prefix}.{index}", layer)
            for index, layer in enumerate(base.layers)
        ),
        final_norm=base.layernorm,
        pool="token",
        pool_score=None,
        num_tokens=embeddings.position_embeddings.shape[1],
        num_pooled=1,
        head=_head(getattr(model, "classifier", None), head),
    )


def _transformers_block(name: str, layer: Any) -> BlockParts:
    _require(layer, f"{_VIT}Layer", f"{_DEIT}Layer")
    _require_parts(layer, "attention", "layernorm_before", "layernorm_after", "mlp")
    return BlockParts(
        name=name,
        module=layer,
        order="pre",
        norm_1=layer.layernorm_before,
        attention=layer.attention,
        norm_2=layer.layernorm_after,
        mlp=layer.mlp,
    )


def _blocks(blocks: Any) -> tuple[BlockParts, ...]:
    """Return the layers of our models and of timm's, which have the same names for their parts."""
    return tuple(_block(f"blocks.{index}", block) for index, block in enumerate(blocks))


def _block(name: str, block: Any) -> BlockParts:
    _require(block, PreNormBlock, PostNormBlock, _TIMM_BLOCK)
    _require_parts(block, "norm1", "attn", "ls1", "norm2", "mlp", "ls2")
    return BlockParts(
        name=name,
        module=block,
        order="post" if is_exactly(block, PostNormBlock) else "pre",
        norm_1=block.norm1,
        attention=block.attn,
        norm_2=block.norm2,
        mlp=block.mlp,
        scale_1=getattr(block, "ls1", None),
        scale_2=getattr(block, "ls2", None),
    )


def _head(own: nn.Module | None, head: nn.Module | None) -> nn.Module:
    """Return what maps features to logits: the head of a method, or the model's own."""
    if head is None:
        return nn.Identity() if own is None else own
    if not is_nothing(own):
        raise _UnknownPart("no theorem here covers a backbone that has a head of its own")
    return head


def _require(module: nn.Module, *kinds: Kind) -> None:
    if not is_exactly(module, *kinds):
        raise _UnknownPart(f"no theorem here covers {type(module).__name__}")


def _require_parts(module: nn.Module, *names: str) -> None:
    other = part_beside(module, *names)
    if other is not None:
        raise _UnknownPart(f"no theorem here covers {type(module).__name__} with a {other}")
