"""Where the attentions of transformers' ViT, DeiT and BERT stand, and what can take their place."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrformer.attention import LRSA, MultiheadSelfAttention
from lrformer.core import ConfigError
from lrformer.interop.projections import Projections, Site, Sites, refuse

# A text has no length of its own. Without data, alpha is set for texts of this many tokens.
NUM_TEXT_TOKENS = 128
# Additive masks hide by minus infinity, or by a number that is as good as that in any precision.
HIDING = -1e4


class TransformersAttention(nn.Module):
    """An attention behind the call of transformers' layers: a pair comes back, the weights are None.

    An attention mask that is the same for every query becomes the padding mask. Attention weights are
    not recorded; `lrformer.attention.attention_maps` returns them.
    """

    def __init__(self, attn: MultiheadSelfAttention, config: Any) -> None:
        super().__init__()
        self.attn = attn
        self.config = config

    def forward(
        self,
        hidden_states: Float[Tensor, "b n e"],
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        past_key_values: Any = None,
        encoder_hidden_states: Tensor | None = None,
        **_: Any,
    ) -> tuple[Float[Tensor, "b n e"], None]:
        """Return the tokens after attention, and None in place of the weights."""
        if output_attentions or self.config.output_attentions:
            raise ConfigError(
                "output_attentions (True) is not possible after conversion; "
                "use lrformer.attention.attention_maps(model, inputs)."
            )
        if past_key_values is not None or encoder_hidden_states is not None:
            raise ConfigError(
                "past_key_values and encoder_hidden_states cannot be given to a converted model: "
                "it is an encoder."
            )
        padding, per_query = split_mask(attention_mask, is_padding=isinstance(self.attn, LRSA))
        return self.attn(hidden_states, attn_mask=per_query, key_padding_mask=padding), None


def split_mask(
    mask: Any, *, is_padding: bool = True
) -> tuple[Bool[Tensor, "b n"] | None, Tensor | None]:
    """Return a mask of transformers as a padding mask, or, where queries differ or nothing is hidden, as it is.

    transformers makes (b, 1, n, n) masks with equal rows, boolean (True attends) or additive, and hands
    (b, n) masks of ones and zeros to flash kernels.

    Args:
        is_padding: whether only padding can be taken. Under torch.compile, where looking at the rows would break the
            graph, their equality is then asserted as the graph runs; otherwise the mask is passed on as it is.
    """
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor):
        raise ConfigError(
            f"attention mask of type {type(mask).__name__} cannot be read; "
            f"call model.set_attn_implementation('sdpa')."
        )
    if mask.ndim == 2:
        return mask == 0, None
    row = mask[:, :, :1]
    is_equal = (mask == row).all()
    if mask.dtype != torch.bool:
        # What is added to some scores and hides nothing is no padding.
        is_equal &= ((row == 0) | (row <= HIDING)).all()
    if torch.compiler.is_compiling():
        if mask.shape[1] != 1 or not is_padding:
            return None, mask
        torch._assert_async(
            is_equal,
            "an attention mask that differs between queries, or that is added and hides nothing, cannot be taken by LRSA",
        )
    elif mask.shape[1] != 1 or not is_equal:
        return None, mask
    hidden = ~row[:, 0, 0] if mask.dtype == torch.bool else row[:, 0, 0] < 0
    return hidden, None


def find_sites(model: nn.Module) -> Sites:
    """Return every self-attention of a transformers model, or raise if one cannot be replaced."""
    config: Any = model.config
    if any(isinstance(module, MultiheadSelfAttention) for module in model.modules()):
        raise refuse(model, "it is converted already; convert the original instead.")
    if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
        raise refuse(
            model, "it is a decoder, and the normalizer of LRSA would leak the future to the past."
        )
    if config.model_type in ("vit", "deit"):
        return _find_vit_sites(model)
    if config.model_type == "bert":
        return _find_bert_sites(model)
    raise refuse(model, f"models of type '{config.model_type}' are not known.")


def _find_vit_sites(model: Any) -> Sites:
    """Return the attentions of a ViT or DeiT."""
    encoder = model.base_model
    prefix = f"{model.base_model_prefix}." if encoder is not model else ""
    sites = []
    for index, layer in enumerate(encoder.layers):
        attention = layer.attention
        if attention.o_proj.in_features != attention.o_proj.out_features:
            raise refuse(model, "its heads do not fill the width of its tokens.")
        projections = Projections(
            num_heads=attention.num_attention_heads,
            w_q=attention.q_proj.weight,
            w_k=attention.k_proj.weight,
            w_v=attention.v_proj.weight,
            b_q=attention.q_proj.bias,
            b_k=attention.k_proj.bias,
            b_v=attention.v_proj.bias,
            proj=attention.o_proj,
            norm=layer.layernorm_before,
            attn_drop=attention.attention_dropout,
        )
        block = f"{prefix}layers.{index}"
        sites.append(_site(model, f"{block}.attention", block, projections))
    num_tokens = encoder.embeddings.position_embeddings.shape[1]
    return Sites(sites=tuple(sites), num_tokens=num_tokens)


def _find_bert_sites(model: Any) -> Sites:
    """Return the attentions of a BERT; the output projection stays where BERT has it."""
    encoder = model.base_model
    prefix = f"{model.base_model_prefix}." if encoder is not model else ""
    sites = []
    norm = encoder.embeddings.LayerNorm
    for index, layer in enumerate(encoder.encoder.layer):
        attention = layer.attention.self
        projections = Projections(
            num_heads=attention.num_attention_heads,
            w_q=attention.query.weight,
            w_k=attention.key.weight,
            w_v=attention.value.weight,
            b_q=attention.query.bias,
            b_k=attention.key.bias,
            b_v=attention.value.bias,
            proj=None,
            norm=norm,
            attn_drop=attention.dropout.p,
        )
        norm = layer.output.LayerNorm
        block = f"{prefix}encoder.layer.{index}"
        sites.append(_site(model, f"{block}.attention.self", block, projections))
    num_tokens = min(NUM_TEXT_TOKENS, encoder.config.max_position_embeddings)
    return Sites(sites=tuple(sites), num_tokens=num_tokens)


def _site(model: Any, name: str, block: str, projections: Projections) -> Site:
    """Return one place whose attention is called as transformers calls it."""

    def wrap(attn: MultiheadSelfAttention) -> nn.Module:
        return TransformersAttention(attn, model.config)

    return Site(name=name, block=block, projections=projections, wrap=wrap, read_call=_read_call)


def _read_call(
    hidden_states: Float[Tensor, "b n e"], attention_mask: Tensor | None = None, *_: Any, **__: Any
) -> tuple[Float[Tensor, "b n e"], Bool[Tensor, "b n"] | None]:
    """Return the tokens of a call and which of them are padding."""
    return hidden_states, split_mask(attention_mask)[0]
