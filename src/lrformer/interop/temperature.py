"""Setting the temperature of a converted attention: from data by entropy, without data in closed form."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrformer.attention import LRSA, SCSA, L2Attention, MultiheadSelfAttention
from lrformer.attention.backends import reference
from lrformer.attention.multihead import Masks
from lrformer.interop.projections import Projections

# Bisection over factors exp(-6) to exp(6) around the first guess, to 12 / 2^20 in the logarithm.
_LOG_RANGE = 6.0
_NUM_STEPS = 20


@torch.no_grad()
def set_in_closed_form(
    module: MultiheadSelfAttention, projections: Projections, *, num_tokens: int
) -> None:
    r"""Set the temperature from the weights alone.

    A token is taken as :math:`\gamma\odot z+\beta` with z of unit variance and :math:`\gamma,\beta` of the
    norm in front of the attention. The mean squares of q, k, v and of the token then follow from the
    weights, and the factor in front of q.k is set to the :math:`1/\sqrt d` of dot-product attention.
    """
    moments = Moments(projections, num_tokens)
    root = math.sqrt(projections.head_dim)
    if isinstance(module, LRSA):
        _set_alpha(module, moments.lrsa_denominator(module) / (2 * root))
    elif isinstance(module, L2Attention):
        _scale_tied_map(module, torch.full((module.num_heads,), 0.5))
    elif isinstance(module, SCSA):
        tau = (moments.norm_q * moments.norm_k).mean() / root
        module.tau = float(tau)
        module.nu = float(moments.norm_v.mean())


class Moments:
    """Root mean square norms of q, k, v of each head and of a token, for tokens after a norm."""

    def __init__(self, projections: Projections, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.num_heads = projections.num_heads
        self.weight, self.bias = _affine(projections.norm, projections.w_q)
        self.token = float((self.weight.square().sum() + self.bias.square().sum()).sqrt())
        self.norm_q = self.norm_of(projections.w_q, projections.b_q)
        self.norm_k = self.norm_of(projections.w_k, None)
        self.norm_v = self.norm_of(projections.w_v, projections.b_v)

    def norm_of(self, w: Float[Tensor, "e e"], b: Tensor | None) -> Float[Tensor, " h"]:
        """Return the root mean square norm of what `w` and `b` make of a token, head by head."""
        w = w.detach().float()
        mean = w @ self.bias + (0 if b is None else b.detach().float())
        squares = (w * self.weight).square().sum(-1) + mean.square()
        return squares.unflatten(0, (self.num_heads, -1)).sum(-1).sqrt()

    def lrsa_denominator(self, module: LRSA) -> Float[Tensor, " h"]:
        """Return what LRSA divides alpha by, had every token the mean square norm."""
        bias = module.qkv.bias
        rows = module.dim
        norm_q = self.norm_of(module.qkv.weight[:rows], None if bias is None else bias[:rows])
        norm_k = norm_q
        if not module.tie_qk:
            norm_k = self.norm_of(module.qkv.weight[rows : 2 * rows], None)
        root_n = math.sqrt(self.num_tokens)
        if module.normalizer == "m":
            return torch.full_like(norm_q, self.token**2)
        if module.normalizer == "floor":
            norm = torch.maximum(
                norm_q * root_n, torch.full_like(norm_q, module.floor * self.token)
            )
        elif module.normalizer == "symmetric":
            norm = root_n * ((norm_q.square() + norm_k.square()) / 2).sqrt()
        else:
            norm = root_n * norm_q
        return norm * self.token / (root_n if module.length_free else 1)


def _affine(
    norm: nn.Module | None, like: Float[Tensor, "e e"]
) -> tuple[Float[Tensor, " e"], Float[Tensor, " e"]]:
    """Return weight and bias of a norm, one and zero where it has none."""
    ones = torch.ones(like.shape[1], device=like.device)
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    return (
        weight.detach().float() if isinstance(weight, Tensor) else ones,
        bias.detach().float() if isinstance(bias, Tensor) else torch.zeros_like(ones),
    )


@torch.no_grad()
def match_entropy(
    module: MultiheadSelfAttention,
    projections: Projections,
    x: Float[Tensor, "b n e"],
    padding: Bool[Tensor, "b n"] | None,
) -> None:
    """Set the temperature so that, on `x`, each head's attention has the original's mean entropy.

    SCSA has one temperature a layer, so there the mean over heads is matched. Where no temperature gives
    that entropy (a single token, say), the factor in front of q.k is set to that of the original.
    """
    masks = Masks(attn_mask=None, is_causal=False, padding=padding)
    target = _entropy(_original_weights(projections, x, padding), padding)
    q, k, v = module.project(x, padding)
    root = math.sqrt(projections.head_dim)
    if isinstance(module, LRSA):
        module.alpha.fill_(1.0)
        start = 1 / (2 * root * module.coefficient(q, k, x, padding).mean(0))

        def entropy_at_alpha(alpha: Float[Tensor, " h"]) -> Float[Tensor, " h"]:
            module.alpha.copy_(alpha)
            return _entropy(module.weights(q, k, x, masks=masks), padding)

        _set_alpha(module, _bisect(entropy_at_alpha, start, target))
    elif isinstance(module, L2Attention):

        def entropy_at_scale(scale: Float[Tensor, " h"]) -> Float[Tensor, " h"]:
            scaled = q * scale.sqrt().view(-1, 1, 1).to(q)
            return _entropy(module.weights(scaled, scaled, x, masks=masks), padding)

        _scale_tied_map(module, _bisect(entropy_at_scale, torch.full_like(target, 0.5), target))
    elif isinstance(module, SCSA):

        def entropy_at_tau(tau: Float[Tensor, " one"]) -> Float[Tensor, " one"]:
            module.tau = float(tau)
            weights = module.weights(q, k, x, masks=masks)
            return _entropy(weights, padding).mean(0, keepdim=True)

        norms = [torch.linalg.vector_norm(part.float(), dim=-1).mean() for part in (q, k, v)]
        start = (norms[0] * norms[1] / root).view(1)
        module.tau = float(_bisect(entropy_at_tau, start, target.mean(0, keepdim=True)))
        module.nu = float(norms[2])


def _original_weights(
    projections: Projections, x: Float[Tensor, "b n e"], padding: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b h n n"]:
    """Return the attention weights of the dot-product attention that is replaced."""

    def project(w: Tensor, b: Tensor | None) -> Tensor:
        return (
            nn.functional.linear(x, w, b).unflatten(-1, (projections.num_heads, -1)).transpose(1, 2)
        )

    return reference.dot_product_weights(
        project(projections.w_q, projections.b_q),
        project(projections.w_k, projections.b_k),
        scale=projections.head_dim**-0.5,
        key_padding_mask=padding,
    )


def _entropy(
    weights: Float[Tensor, "b h n n"], padding: Bool[Tensor, "b n"] | None
) -> Float[Tensor, " h"]:
    """Return the mean entropy of the rows of each head, over queries that are not padding."""
    rows = torch.special.entr(weights).sum(-1)
    if padding is None:
        return rows.mean((0, 2))
    valid = ~padding.unsqueeze(1)
    return (rows * valid).sum((0, 2)) / valid.sum().clamp_min(1)


def _bisect(
    entropy_at: Callable[[Tensor], Tensor], start: Float[Tensor, " h"], target: Float[Tensor, " h"]
) -> Float[Tensor, " h"]:
    """Return where the falling `entropy_at` meets `target`, or `start` where the range holds no such point."""
    low, high = start.log() - _LOG_RANGE, start.log() + _LOG_RANGE
    is_inside = (entropy_at(low.exp()) > target) & (entropy_at(high.exp()) < target)
    for _ in range(_NUM_STEPS):
        middle = (low + high) / 2
        is_too_flat = entropy_at(middle.exp()) > target
        low, high = torch.where(is_too_flat, middle, low), torch.where(is_too_flat, high, middle)
    return torch.where(is_inside, ((low + high) / 2).exp(), start)


def _set_alpha(module: LRSA, alpha: Float[Tensor, " h"]) -> None:
    """Write `alpha`, kept positive, into the module's buffer."""
    tiny = torch.finfo(module.alpha.dtype).tiny
    module.alpha.copy_(alpha.clamp_min(tiny))


def _scale_tied_map(module: L2Attention, scale: Float[Tensor, " h"]) -> None:
    """Multiply the squared distances of each head by `scale`, through the tied weights."""
    rows = scale.sqrt().repeat_interleave(module.head_dim).to(module.qkv.weight)
    module.qkv.weight[: module.dim].mul_(rows.unsqueeze(-1))
