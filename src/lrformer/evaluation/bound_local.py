"""Sound constants on a ball around each input, carried through a transformer from layer to layer.

The ball of radius R around an input is mapped into balls around its tokens. Each layer has a constant on
its ball (LayerNorm by the smallest deviation there, tied LRSA by the smallest Z / M, dot products by the
largest token); their product so far times R is the radius of the next ball. Both token norms are kept: a
constant from the input to the max-token norm is never above that to the Frobenius norm.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lrformer.attention import LRSA
from lrformer.evaluation.bound_measurements import differentiable
from lrformer.evaluation.bound_modules import (
    attention_constants,
    head_weights,
    is_dot_product,
    is_layer_norm,
    mlp_constants,
    norm_constants,
    norm_output_radius,
    unwrap_attention,
    with_dot_product_bias,
    with_score_biases,
)
from lrformer.evaluation.bound_structure import (
    BlockParts,
    Structure,
    read_structure,
    with_tokens_of,
)
from lrformer.evaluation.bound_types import Kind, is_exactly, is_nothing
from lrformer.lipschitz import HeadWeights, Norm, ratios_on_ball, spectral_norm
from lrformer.lipschitz import layers as constants
from lrformer.lipschitz.attention import dot_product_on_ball, multi_head
from lrformer.lipschitz.lrsa import lrsa_tied
from lrformer.lipschitz.norms import max_token_norm
from lrformer.lipschitz.weights import head_gains

_LAYER_SCALES: tuple[Kind, ...] = (
    "timm.layers.layer_scale.LayerScale",
    "timm.models.vision_transformer.LayerScale",  # in older versions of timm
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """The constants from the input ball to the tokens at one place, per sample, in both norms."""

    frobenius: Tensor
    max_token: Tensor

    def through(self, frobenius: Tensor | float, max_token: Tensor | float, n: int) -> "Reach":
        """Return the reach after a map with these constants; norms change at their price, 1 and sqrt(n)."""
        along = _product(self.max_token, max_token)
        longest = torch.minimum(_product(self.frobenius, frobenius), math.sqrt(n) * along)
        return Reach(frobenius=longest, max_token=torch.minimum(along, longest))


@dataclass(kw_only=True)
class LocalChain:
    """Constants on the balls: of the tokens at each place, of single modules, and of pooled features."""

    pooled: Tensor
    places: dict[str, Tensor] = field(default_factory=dict)
    modules: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def local_chain(
    model: nn.Module, x: Tensor, *, radius: float, embedding: float, pool: float
) -> LocalChain:
    """Return constants that hold between any two points of the L2 ball of `radius` around each input.

    Args:
        embedding: the constant of the embedding.
        pool: the constant of pooling from the max-token norm.
    """
    # In float64, since the centers of the balls are part of the proof.
    exact = copy.deepcopy(model).double().eval()
    known = read_structure(exact)
    assert isinstance(known, Structure)
    structure = with_tokens_of(known, exact, x.double())
    walk = _Walk(structure, _tokens(exact, structure, x.double()), radius)
    start = torch.full((x.shape[0],), embedding, dtype=torch.float64, device=x.device)
    reach = Reach(frobenius=start, max_token=start)
    chain = LocalChain(pooled=start)
    chain.places["embedding"] = reach.frobenius
    for block in structure.blocks:
        reach = walk.block(block, reach, chain)
        chain.places[block.name] = reach.frobenius
    if structure.final_norm is not None:
        reach, constant = walk.norm(structure.final_norm, reach)
        chain.modules["norm"] = constant
    chain.pooled = reach.max_token * pool
    if structure.pool == "avg":
        chain.pooled = torch.minimum(
            chain.pooled, reach.frobenius / math.sqrt(structure.num_pooled)
        )
    return chain


class _Walk:
    """One pass through the layers, with the tokens that enter each of them."""

    def __init__(self, structure: Structure, tokens: dict[nn.Module, Tensor], radius: float):
        self.n = structure.num_tokens
        self.tokens = tokens
        self.radius = radius

    def block(self, block: BlockParts, reach: Reach, chain: LocalChain) -> Reach:
        """Return the reach after a layer and note the constants of its parts."""
        attention = unwrap_attention(block.attention)
        mlp = mlp_constants(block.mlp)
        steps = (
            ("norm1", block.norm_1, "attn", block.attention, block.scale_1),
            ("norm2", block.norm_2, "mlp", block.mlp, block.scale_2),
        )
        for norm_name, norm, name, module, scale_module in steps:
            scale = layer_scale(scale_module)
            inner, gain = reach, torch.ones_like(reach.frobenius)
            if block.order == "pre":
                inner, gain = self.norm(norm, reach)
                chain.modules[f"{block.name}.{norm_name}"] = gain
            if module is block.attention:
                longest = norm_output_radius(norm) if block.order == "pre" else None
                branch = self.attention(attention, self.tokens.get(module), inner, longest)
            else:
                both = (mlp.frobenius.value, mlp.max_token.value)
                branch = tuple(torch.full_like(gain, value) for value in both)
            chain.modules[f"{block.name}.{name}"] = branch[0]
            grown = [1 + _product(scale * gain, constant) for constant in branch]
            reach = reach.through(grown[0], grown[1], self.n)
            if block.order == "post":
                reach, gain = self.norm(norm, reach)
                chain.modules[f"{block.name}.{norm_name}"] = gain
        return reach

    def norm(self, module: nn.Module, reach: Reach) -> tuple[Reach, Tensor]:
        """Return the reach after a normalization and its constant, smaller than the global one if known."""
        tokens = self.tokens.get(module)
        constant = torch.full_like(reach.frobenius, norm_constants(module).frobenius.value)
        if is_layer_norm(module) and tokens is not None:
            weight = module.weight
            gamma = tokens.new_ones(tokens.shape[-1]) if weight is None else weight
            constant = constants.layer_norm_on_ball(
                tokens, gamma, eps=module.eps, radius=self.radius * reach.max_token
            )
        return reach.through(constant, constant, self.n), constant

    def attention(
        self, module: Any, tokens: Tensor | None, reach: Reach, longest: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return the constants of an attention layer on the balls around its tokens, in both norms.

        Args:
            longest: the length that no token exceeds, on a ball or anywhere, where a norm stands before.
        """
        heads = head_weights(module)
        if tokens is not None and heads is not None:
            if is_exactly(module, LRSA):
                heads = with_score_biases(module, heads)
                if heads.is_tied and module.normalizer in {"paper", "symmetric"}:
                    return self._lrsa(module, heads, tokens, reach)
            elif is_dot_product(module):
                return self._dot_product(module, heads, tokens, reach, longest)
        found = attention_constants(module, n=self.n, radius=None)
        both = (found.frobenius.value, found.max_token.value)
        like = reach.frobenius
        return torch.full_like(like, both[0]), torch.full_like(like, both[1])

    def _lrsa(
        self, module: LRSA, heads: HeadWeights, tokens: Tensor, reach: Reach
    ) -> tuple[Tensor, Tensor]:
        low, high = ratios_on_ball(
            tokens,
            heads.query,
            frobenius=self.radius * reach.frobenius,
            max_token=self.radius * reach.max_token,
            bias=heads.query_bias,
        )
        alphas = module.effective_alpha().detach().double()
        alphas = (alphas * math.sqrt(self.n) if module.length_free else alphas).expand(low.shape[1])
        sigmas = [spectral_norm(w) for w in heads.query]

        def brackets(norm: Norm) -> list[list[Any]]:
            rows = zip(low.tolist(), high.tolist(), strict=True)
            return [
                [
                    lrsa_tied(s, alpha=a, n=self.n, norm=norm, min_ratio=r1, max_ratio=r2)
                    for s, a, r1, r2 in zip(sigmas, alphas.tolist(), lows, highs, strict=True)
                ]
                for lows, highs in rows
            ]

        return self._combined(heads, brackets("F"), brackets("max"), low)

    def _dot_product(
        self,
        module: nn.Module,
        heads: HeadWeights,
        tokens: Tensor,
        reach: Reach,
        longest: float | None,
    ) -> tuple[Tensor, Tensor]:
        radii = max_token_norm(tokens) + self.radius * reach.max_token
        if longest is not None:
            radii = radii.clamp_max(longest)
        wide, _ = with_dot_product_bias(module, heads, 0.0)
        if wide.query.shape[1] > heads.query.shape[1]:
            radii = torch.hypot(radii, torch.ones_like(radii))
        key = wide.query if wide.key is None else wide.key
        sigmas = [spectral_norm(q @ k.T) for q, k in zip(wide.query, key, strict=True)]
        width = heads.query.shape[2]

        def brackets(norm: Norm) -> list[list[Any]]:
            return [
                [
                    dot_product_on_ball(s, radius=r, head_dim=width, n=self.n, norm=norm)
                    for s in sigmas
                ]
                for r in radii.tolist()
            ]

        return self._combined(heads, brackets("F"), brackets("max"), radii)

    def _combined(
        self,
        heads: HeadWeights,
        frobenius: Sequence[list[Any]],
        max_token: Sequence[list[Any]],
        like: Tensor,
    ) -> tuple[Tensor, Tensor]:
        gains = head_gains(heads)

        def combined(rows: Sequence[list[Any]]) -> Tensor:
            values = [float(multi_head(row, **gains)) for row in rows]
            return torch.tensor(values, dtype=torch.float64, device=like.device)

        return combined(frobenius), combined(max_token)


def layer_scale(module: Any) -> float:
    """Return the largest factor of a LayerScale; 1 where there is none, infinity for what is unknown."""
    if is_nothing(module):
        return 1.0
    return (
        float(module.gamma.detach().abs().max()) if is_exactly(module, *_LAYER_SCALES) else math.inf
    )


def _product(first: Tensor, second: Tensor | float) -> Tensor:
    """Return the product; where one factor has no bound, zero elsewhere does not help."""
    return torch.nan_to_num(first * second, nan=math.inf, posinf=math.inf)


def _tokens(model: nn.Module, structure: Structure, x: Tensor) -> dict[nn.Module, Tensor]:
    """Return what enters each norm and attention; a module that is called twice is left out."""
    wanted = [structure.final_norm] + [
        part for block in structure.blocks for part in (block.norm_1, block.attention, block.norm_2)
    ]
    caught: dict[nn.Module, list[Tensor]] = {}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.ndim == 3]
        caught.setdefault(module, []).extend(tensors)

    handles = [
        module.register_forward_pre_hook(before, with_kwargs=True)
        for module in wanted
        if module is not None
    ]
    try:
        with differentiable(model):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return {module: found[0] for module, found in caught.items() if len(found) == 1}
