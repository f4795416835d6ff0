"""Attention maps of a whole model, for looking at."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.attention.multihead import MultiheadSelfAttention
from lrformer.core import UnsupportedModelError


@torch.no_grad()
def attention_maps(
    model: nn.Module, *inputs: Any, **named_inputs: Any
) -> dict[str, Float[Tensor, "b h n n"]]:
    """Return the attention weights of every layer of `model` on its inputs, by the layer's name.

    Works for every model whose attention is one of this package's modules, converted ones too. The
    matrices are whole: b h n^2 numbers a layer.
    """
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, MultiheadSelfAttention)
    }
    if not layers:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no attention layer of this package to look at; "
            f"build it with lrformer.create_model or convert it with lrformer.convert."
        )
    maps: dict[str, Tensor] = {}

    def keep_map(name: str, layer: MultiheadSelfAttention) -> Any:
        def before_forward(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            maps[name] = layer.attention_map(*args, **kwargs)

        return layer.register_forward_pre_hook(before_forward, with_kwargs=True)

    handles = [keep_map(name, layer) for name, layer in layers.items()]
    try:
        model(*inputs, **named_inputs)
    finally:
        for handle in handles:
            handle.remove()
    return maps
