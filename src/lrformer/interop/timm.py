"""Where the attentions of timm's vision transformers stand, and what can take their place."""

from functools import partial
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrformer.attention import MultiheadSelfAttention
from lrformer.core import ConfigError
from lrformer.interop.projections import Projections, Site, Sites, refuse


class WithoutRope(nn.Module):
    """An attention behind the call of timm's Eva blocks, which hand over a rotary embedding, here None."""

    def __init__(self, attn: MultiheadSelfAttention) -> None:
        super().__init__()
        self.attn = attn

    def forward(
        self,
        x: Float[Tensor, "b n e"],
        rope: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "b n e"]:
        """Return the tokens after attention."""
        if rope is not None:
            raise ConfigError("rope cannot be given to a converted attention: it has no rotation.")
        return self.attn(x, attn_mask=attn_mask, is_causal=is_causal)


def find_sites(model: nn.Module) -> Sites:
    """Return every self-attention of a timm model, or raise if one of them cannot be replaced."""
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(model, VisionTransformer | Eva):
        raise refuse(model, _reason(model))
    if getattr(model, "rope", None) is not None:
        raise refuse(model, "its rotary embedding turns queries and keys before their product.")
    sites: list[Site] = []
    for index, block in enumerate(model.blocks):
        found = _sites_of_block(model, f"blocks.{index}", block)
        if not found:
            raise refuse(
                model, f"its block of type {type(block).__name__} has no attention of its own."
            )
        sites += found
    num_tokens = model.patch_embed.num_patches + model.num_prefix_tokens
    return Sites(sites=tuple(sites), num_tokens=num_tokens)


def _reason(model: nn.Module) -> str:
    """Return why a timm model of another family is refused."""
    kinds = {type(module).__name__ for module in model.modules()}
    if any("WindowAttention" in kind for kind in kinds):
        return (
            "its windowed attention adds a bias for every pair of positions and masks pairs at shifted "
            "borders; the normalizer of LRSA reads every token of the window, masked ones too."
        )
    return "it is not a plain vision transformer."


def _sites_of_block(model: nn.Module, block_name: str, block: nn.Module) -> list[Site]:
    """Return the attentions inside one block."""
    from timm.layers import Attention, AttentionRope
    from timm.models.eva import EvaAttention, EvaBlock
    from timm.models.vision_transformer import Block

    norm = block.norm1 if isinstance(block, Block | EvaBlock) else None
    sites: list[Site] = []
    for name, module in block.named_modules():
        kind = type(module)
        if isinstance(module, MultiheadSelfAttention):
            raise refuse(model, "it is converted already; convert the original instead.")
        if kind not in (Attention, AttentionRope, EvaAttention):
            continue
        site = Site(
            name=f"{block_name}.{name}",
            block=block_name,
            projections=_read(model, module, norm if isinstance(norm, nn.Module) else None),
            wrap=_as_it_is if kind is Attention else WithoutRope,
            read_call=_read_call,
        )
        sites.append(site)
    return sites


def _read(model: nn.Module, attn: Any, norm: nn.Module | None) -> Projections:
    """Return the weights of timm's `Attention`, `AttentionRope` or `EvaAttention`."""
    dim = attn.proj.out_features
    is_set = partial(_is_set, attn)
    if is_set("q_norm") or is_set("k_norm"):
        raise refuse(
            model, "its qk_norm normalizes queries and keys, another similarity than q k^T."
        )
    if is_set("norm") or getattr(attn, "gate", None) is not None:
        raise refuse(model, "a norm or a gate stands between its attention and output projection.")
    if getattr(attn, "num_kv_heads", attn.num_heads) != attn.num_heads:
        raise refuse(model, "groups of its heads share keys and values.")
    if attn.num_heads * attn.head_dim != dim or attn.proj.in_features != dim:
        raise refuse(model, f"its heads do not fill the width of its tokens ({dim}).")
    if attn.qkv is not None:
        weights = attn.qkv.weight.chunk(3)
        separate = getattr(attn, "q_bias", None) is not None
        if separate:
            biases = (attn.q_bias, attn.k_bias, attn.v_bias)
        else:
            biases = (None,) * 3 if attn.qkv.bias is None else attn.qkv.bias.chunk(3)
    else:
        linears = (attn.q_proj, attn.k_proj, attn.v_proj)
        weights = tuple(linear.weight for linear in linears)
        biases = tuple(linear.bias for linear in linears)
    return Projections(
        num_heads=attn.num_heads,
        w_q=weights[0],
        w_k=weights[1],
        w_v=weights[2],
        b_q=biases[0],
        b_k=biases[1],
        b_v=biases[2],
        proj=attn.proj,
        norm=norm,
        attn_drop=attn.attn_drop.p,
        proj_drop=attn.proj_drop.p,
    )


def _is_set(attn: nn.Module, name: str) -> bool:
    """Return whether an optional layer of an attention does something."""
    return not isinstance(getattr(attn, name, None), nn.Identity | type(None))


def _as_it_is(attn: MultiheadSelfAttention) -> nn.Module:
    """Return the attention itself: timm's blocks call it with the arguments that it takes."""
    return attn


def _read_call(
    x: Float[Tensor, "b n e"], *_: Any, **__: Any
) -> tuple[Float[Tensor, "b n e"], Bool[Tensor, "b n"] | None]:
    """Return the tokens of a call; timm's classifiers do not pad."""
    return x, None
