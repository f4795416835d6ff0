"""The constants of single modules, read from their weights; whatever is unknown gets infinity and a reason."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from lrformer.attention import LRSA, SCSA, DotProductAttention, L2Attention, MultiheadSelfAttention
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
    if module is None or isinstance(module, nn.Identity):
        return same(1.0, "none")
    if isinstance(module, nn.LayerNorm):
        gamma = _gain(module, module.normalized_shape[-1])
        value = constants.layer_norm(gamma, eps=module.eps)
        return same(value, f"theorem 10, eps {module.eps:g}")
    if isinstance(module, nn.RMSNorm) and module.eps is not None:
        gamma = _gain(module, module.normalized_shape[-1])
        return same(constants.rms_norm(gamma, eps=module.eps), f"exact, eps {module.eps:g}")
    return unknown(module)


def norm_output_radius(module: nn.Module | None) -> float | None:
    """Return the largest norm of a token after a LayerNorm or RMSNorm; None where it has no bound."""
    if not isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return None
    width = module.normalized_shape[-1]
    bias = getattr(module, "bias", None)
    shift = float(bias.detach().double().norm()) if bias is not None else 0.0
    return math.sqrt(width) * float(_gain(module, width).abs().max()) + shift


def _gain(module: nn.LayerNorm | nn.RMSNorm, width: int) -> Tensor:
    return torch.ones(width) if module.weight is None else module.weight.detach()


def linear_constants(module: nn.Module) -> Constants:
    """Return the spectral norm of a Linear, applied to every token."""
    if isinstance(module, nn.Identity):
        return same(1.0, "identity")
    if isinstance(module, nn.Linear):
        return same(spectral_norm(module.weight), "spectral norm")
    return unknown(module)


def activation_name(module: nn.Module) -> str | None:
    """Return the name under which the slope of an activation is known."""
    kind = type(module).__name__
    if isinstance(module, nn.GELU):
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    names = {
        "GELUActivation": "gelu",
        "GELUTanh": "gelu_tanh",
        "NewGELUActivation": "gelu_tanh",
        "QuickGELUActivation": "quick_gelu",
        "QuickGELU": "quick_gelu",
        "SiLU": "silu",
        "ReLU": "relu",
        "Identity": "identity",
    }
    return names.get(kind)


def mlp_constants(module: nn.Module) -> Constants:
    """Return the constants of fc2(act(fc1(x))), in evaluation mode."""
    first, second = getattr(module, "fc1", None), getattr(module, "fc2", None)
    act = getattr(module, "act", None) or getattr(module, "activation_fn", None)
    inner_norm = getattr(module, "norm", None)
    is_plain = inner_norm is None or isinstance(inner_norm, nn.Identity)
    name = None if act is None else activation_name(act)
    if not (isinstance(first, nn.Linear) and isinstance(second, nn.Linear) and is_plain and name):
        return unknown(module)
    if first.out_features != second.in_features:
        return unknown(module)  # a gate between them
    value = constants.mlp(
        spectral_norm(first.weight), spectral_norm(second.weight), activation=name
    )
    return same(float(value), f"sup slope of {name} times two spectral norms")


def head_weights(module: nn.Module) -> HeadWeights | None:
    """Return the matrices of a fused multi-head attention, ours or timm's; None for another layout."""
    qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
    num_heads = getattr(module, "num_heads", None)
    if not isinstance(qkv, nn.Linear) or not isinstance(num_heads, int):
        return None
    parts = qkv.weight.shape[0] // qkv.weight.shape[1]
    if parts not in (2, 3) or qkv.weight.shape[0] != parts * qkv.weight.shape[1]:
        return None
    heads = qkv.weight.detach().double().unflatten(0, (parts, num_heads, -1)).mT
    if isinstance(proj, nn.Linear):
        output = proj.weight.detach().double().T.unflatten(0, (num_heads, -1))
    elif proj is None or isinstance(proj, nn.Identity):
        width = qkv.weight.shape[1]
        output = torch.eye(width).to(heads).unflatten(0, (num_heads, -1))
    else:
        return None
    key = heads[1] if parts == 3 else None
    return HeadWeights(query=heads[0], key=key, value=heads[-1], output=output)


def attention_constants(module: nn.Module, *, n: int, radius: float | None) -> Constants:
    """Return the constants of an attention layer on `n` tokens.

    Args:
        radius: the largest norm of a token that can come in, where the layer before bounds it.
    """
    heads = head_weights(module)
    if heads is None:
        return unknown(module)
    if isinstance(module, LRSA):
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
    if isinstance(module, L2Attention):
        return both(lambda norm: l2_bound(heads, n=n, norm=norm, is_provable=module.provable))
    if isinstance(module, SCSA):
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


def is_dot_product(module: nn.Module) -> bool:
    """Return whether this is plain dot-product attention, ours or timm's."""
    return isinstance(module, DotProductAttention) or _is_timm_attention(module)


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


def _is_timm_attention(module: nn.Module) -> bool:
    """Return whether this is timm's plain attention, known by name: timm is not imported for it."""
    kind = type(module)
    is_plain = all(
        isinstance(getattr(module, name, None), nn.Identity | None)
        for name in ("q_norm", "k_norm", "norm")
    )
    return kind.__name__ == "Attention" and kind.__module__.startswith("timm.") and is_plain


def unwrap_attention(module: nn.Module) -> nn.Module:
    """Return the attention inside an adapter to another package's call."""
    inner = getattr(module, "attn", None)
    return inner if isinstance(inner, MultiheadSelfAttention) else module


def printed_attention(module: nn.Module, x_norm: float) -> Bound | None:
    """Return the paper's L_LRSA of the head for which it is largest, at an input of this norm.

    None for another attention, and for LRSA with another normalizer than the paper's, of which it says nothing.
    """
    heads = head_weights(module)
    if heads is None or not isinstance(module, LRSA):
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
