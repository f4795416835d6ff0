"""The constants of single modules, read from their weights; whatever is unknown gets infinity and a reason."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn

from lrformer.attention import LRSA, SCSA, DotProductAttention, L2Attention
from lrformer.evaluation.bound_types import Kind, full_name, is_exactly, is_nothing, part_beside
from lrformer.heads.linear import LinearHead
from lrformer.interop.transformers import TransformersAttention
from lrformer.lipschitz import (
    Bound,
    HeadWeights,
    Norm,
    dot_product_bound,
    l2_bound,
    lrsa_bound,
    printed,
    scsa_bound,
    spectral_norm,
)
from lrformer.lipschitz import layers as constants
from lrformer.lipschitz.maps import Normalizer
from lrformer.models.mlp import Mlp

_LAYER_NORMS: tuple[Kind, ...] = (
    nn.LayerNorm,
    "timm.layers.norm.LayerNorm",
    "timm.layers.norm.LayerNormFp32",
)
_MLPS: tuple[Kind, ...] = (
    Mlp,
    "timm.layers.mlp.Mlp",
    "transformers.models.vit.modeling_vit.ViTMLP",
    "transformers.models.deit.modeling_deit.DeiTMLP",
)
_TIMM_ATTENTION = "timm.layers.attention.Attention"
_ATTENTIONS: tuple[Kind, ...] = (LRSA, L2Attention, SCSA, DotProductAttention, _TIMM_ATTENTION)
# Names under which their slopes are known.
_ACTIVATIONS = {
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.linear.Identity": "identity",
    "timm.layers.activations.GELU": "gelu",
    "timm.layers.activations.GELUTanh": "gelu_tanh",
    "timm.layers.activations.QuickGELU": "quick_gelu",
    "transformers.activations.GELUActivation": "gelu",
    "transformers.activations.GELUTanh": "gelu_tanh",
    "transformers.activations.NewGELUActivation": "gelu_tanh",
    "transformers.activations.QuickGELUActivation": "quick_gelu",
    "transformers.activations.SiLUActivation": "silu",
}


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The sound constants of one module in both norms."""

    frobenius: Bound
    max_token: Bound

    def of(self, norm: Norm) -> Bound:
        """Return the constant in `norm`."""
        return self.frobenius if norm == "F" else self.max_token


def both(make: Callable[[Norm], Bound]) -> Constants:
    """Return the constants that `make` gives in each norm."""
    return Constants(frobenius=make("F"), max_token=make("max"))


def same(value: float, reason: str) -> Constants:
    """Return one constant for both norms, as tokenwise maps have."""
    return both(lambda norm: Bound(value=value, norm=norm, reason=reason))


def unknown(module: nn.Module | None) -> Constants:
    """Return infinity for a module that no theorem here speaks of."""
    return same(math.inf, f"no theorem here covers {type(module).__name__}")


def norm_constants(module: nn.Module | None) -> Constants:
    """Return the exact constants of a normalization layer, or of nothing in its place."""
    if module is None or is_nothing(module):
        return same(1.0, "none")
    if is_layer_norm(module):
        gamma = _gain(module, module.normalized_shape[-1])
        value = constants.layer_norm(gamma, eps=module.eps)
        return same(value, f"theorem 10, eps {module.eps:g}")
    if is_rms_norm(module) and module.eps is not None:
        gamma = _gain(module, module.normalized_shape[-1])
        return same(constants.rms_norm(gamma, eps=module.eps), f"exact, eps {module.eps:g}")
    return unknown(module)


def is_layer_norm(module: nn.Module | None) -> TypeGuard[nn.LayerNorm]:
    """Return whether this is a plain LayerNorm of single tokens, torch's or timm's."""
    return is_exactly(module, *_LAYER_NORMS) and _is_of_tokens(module)


def is_rms_norm(module: nn.Module | None) -> TypeGuard[nn.RMSNorm]:
    """Return whether this is torch's RMSNorm of single tokens."""
    return is_exactly(module, nn.RMSNorm) and _is_of_tokens(module)


def _is_of_tokens(module: Any) -> bool:
    """Return whether a norm is over the width alone, and not over several tokens."""
    return len(module.normalized_shape) == 1


def is_linear(module: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Return whether this is a plain Linear, its weight parametrized or not."""
    return is_exactly(module, nn.Linear, LinearHead)


def norm_output_radius(module: Any) -> float | None:
    """Return the largest norm of a token after a LayerNorm or RMSNorm; None where it has no bound."""
    if not is_layer_norm(module) and not is_rms_norm(module):
        return None
    width = module.normalized_shape[-1]
    bias = getattr(module, "bias", None)
    shift = float(bias.detach().double().norm()) if bias is not None else 0.0
    return math.sqrt(width) * float(_gain(module, width).abs().max()) + shift


def _gain(module: nn.LayerNorm | nn.RMSNorm, width: int) -> Tensor:
    return torch.ones(width) if module.weight is None else module.weight.detach()


def linear_constants(module: nn.Module) -> Constants:
    """Return the spectral norm of a Linear, applied to every token."""
    if is_nothing(module):
        return same(1.0, "identity")
    if is_linear(module):
        return same(spectral_norm(module.weight), "spectral norm")
    return unknown(module)


def activation_name(module: Any) -> str | None:
    """Return the name under which the slope of an activation is known."""
    if is_exactly(module, nn.GELU):
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    return _ACTIVATIONS.get(full_name(module))


def mlp_constants(module: Any) -> Constants:
    """Return the constants of fc2(act(fc1(x))), in evaluation mode."""
    if not is_exactly(module, *_MLPS) or part_beside(module, "fc1", "act", "activation_fn", "fc2"):
        return unknown(module)
    first, second = module.fc1, module.fc2
    act = getattr(module, "act", None) or getattr(module, "activation_fn", None)
    name = None if act is None else activation_name(act)
    if not (is_linear(first) and is_linear(second) and name):
        return unknown(module)
    value = constants.mlp(
        spectral_norm(first.weight), spectral_norm(second.weight), activation=name
    )
    return same(float(value), f"sup slope of {name} times two spectral norms")


def head_weights(module: Any) -> HeadWeights | None:
    """Return the matrices of a fused multi-head attention, ours or timm's; None for another layout."""
    if not is_exactly(module, *_ATTENTIONS) or part_beside(module, "qkv", "proj"):
        return None
    qkv, proj, num_heads = module.qkv, module.proj, module.num_heads
    parts = 2 if getattr(module, "tie_qk", False) else 3
    if not is_linear(qkv) or qkv.out_features != parts * qkv.in_features:
        return None
    heads = qkv.weight.detach().double().unflatten(0, (parts, num_heads, -1)).mT
    if is_linear(proj):
        output = proj.weight.detach().double().T.unflatten(0, (num_heads, -1))
    elif is_nothing(proj):
        width = qkv.weight.shape[1]
        output = torch.eye(width).to(heads).unflatten(0, (num_heads, -1))
    else:
        return None
    key = heads[1] if parts == 3 else None
    return HeadWeights(query=heads[0], key=key, value=heads[-1], output=output)


def attention_constants(module: Any, *, n: int, radius: float | None) -> Constants:
    """Return the constants of an attention layer on `n` tokens.

    Args:
        radius: the largest norm of a token that can come in, where the layer before bounds it.
    """
    heads = head_weights(module)
    if heads is None:
        return unknown(module)
    if is_exactly(module, LRSA):
        heads = with_score_biases(module, heads)
        alpha = module.effective_alpha().detach().double().cpu()
        alpha = alpha * math.sqrt(n) if module.length_free else alpha
        normalizer = cast(Normalizer, module.normalizer)
        floor = module.floor if normalizer == "floor" else 0.0
        return both(
            lambda norm: lrsa_bound(
                heads, alpha=alpha, n=n, norm=norm, normalizer=normalizer, floor=floor
            )
        )
    if is_exactly(module, L2Attention):
        return both(lambda norm: l2_bound(heads, n=n, norm=norm, is_provable=module.provable))
    if is_exactly(module, SCSA):
        return both(
            lambda norm: scsa_bound(
                heads, tau=module.tau, nu=module.nu, eps=module.eps, n=n, norm=norm
            )
        )
    if not is_dot_product(module):
        return unknown(module)
    if radius is not None:
        heads, radius = with_dot_product_bias(module, heads, radius)
    return both(lambda norm: dot_product_bound(heads, n=n, norm=norm, radius=radius))


def is_dot_product(module: Any) -> bool:
    """Return whether this is plain dot-product attention, ours or timm's, with the usual scale of its scores."""
    kinds = (DotProductAttention, _TIMM_ATTENTION)
    return is_exactly(module, *kinds) and module.scale == module.head_dim**-0.5


def with_dot_product_bias(
    module: nn.Module, heads: HeadWeights, radius: float
) -> tuple[HeadWeights, float]:
    """Return heads on tokens with one more coordinate, always 1, that carries the biases of q and k.

    Such tokens have norm sqrt(R^2 + 1). A bias of the values moves all outputs alike.
    """
    bias = getattr(module.qkv, "bias", None)
    if not isinstance(bias, Tensor):
        return heads, radius
    parts = 2 if heads.key is None else 3
    rows = bias.detach().double().unflatten(0, (parts, heads.query.shape[0], 1, -1))
    key = None if heads.key is None else torch.cat([heads.key, rows[1]], dim=1)
    query = torch.cat([heads.query, rows[0]], dim=1)
    return replace(heads, query=query, key=key), math.hypot(radius, 1.0)


def with_score_biases(module: LRSA, heads: HeadWeights) -> HeadWeights:
    """Return heads that know the biases of q and k; a tied layer has one for both."""
    bias = module.qkv.bias
    if bias is None:
        return heads
    parts = 2 if heads.key is None else 3
    rows = bias.detach().double().unflatten(0, (parts, heads.query.shape[0], -1))
    return replace(heads, query_bias=rows[0], key_bias=None if heads.key is None else rows[1])


def unwrap_attention(module: Any) -> nn.Module:
    """Return the attention inside the adapter to the call of transformers."""
    return module.attn if is_exactly(module, TransformersAttention) else module


def printed_attention(module: Any, x_norm: float) -> Bound | None:
    """Return the paper's L_LRSA of the head for which it is largest, at an input of this norm.

    None for another attention, and for LRSA with another normalizer than the paper's, of which it says nothing.
    """
    heads = head_weights(module)
    if heads is None or not is_exactly(module, LRSA):
        return None
    if module.normalizer != "paper" or module.length_free:
        return None
    key = heads.query if heads.key is None else heads.key
    alphas = module.effective_alpha().detach().tolist()
    return max(
        (
            printed.lrsa_constant(w_q, w_k, alpha=alpha, x_norm=x_norm)
            for w_q, w_k, alpha in zip(heads.query, key, alphas, strict=True)
        ),
        key=lambda bound: bound.value,
    )
