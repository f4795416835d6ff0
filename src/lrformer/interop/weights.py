"""From pretrained projections to the weights of another attention: what is kept, tied, scaled, dropped."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.attention import LRSA, AttentionConfig, DotProductAttention, MultiheadSelfAttention
from lrformer.interop.projections import Projections


def build_attention(projections: Projections, config: AttentionConfig) -> MultiheadSelfAttention:
    """Return the module of `config` for these sizes, with random projections and without side effects."""
    weight = projections.w_q
    # Built on the CPU: forking the generator of another device would wake it up.
    with torch.random.fork_rng(devices=[]), torch.device("meta" if weight.is_meta else "cpu"):
        module = config.build(
            projections.dim,
            projections.num_heads,
            attn_drop=projections.attn_drop,
            proj_drop=projections.proj_drop,
        ).to(weight)
    module.proj = projections.proj if projections.proj is not None else _no_projection()
    return module


def _no_projection() -> Any:
    """Return a layer that does nothing, for models whose output projection stands elsewhere."""
    return nn.Identity()


@torch.no_grad()
def transfer(projections: Projections, module: MultiheadSelfAttention, *, key_scale: float) -> None:
    """Write the pretrained weights into `module`, by the rules of docs/conversion.md.

    Rows of v and their bias are kept to the bit. Untied rows of q and k are kept, in LRSA up to a power
    of two (`key_gauge`); tied ones come from `tied_map`. The key's bias is dropped, because it cancels
    in dot-product attention and in no other; the query's is kept, or dropped where q and k are tied.
    """
    w_q, w_k, b_q, b_k = projections.w_q, projections.w_k, projections.b_q, projections.b_k
    if not isinstance(module, DotProductAttention):
        b_k = None
    if module.tie_qk:
        w_q = tied_map(w_q, w_k, num_heads=projections.num_heads)
        weights, biases = (w_q, projections.w_v), (None, projections.b_v)
    else:
        if isinstance(module, LRSA):
            gauge = key_gauge(w_q, w_k, num_heads=projections.num_heads, key_scale=key_scale)
            rows = gauge.repeat_interleave(projections.head_dim)
            w_q, w_k = w_q / rows.unsqueeze(-1), w_k * rows.unsqueeze(-1)
            b_q = b_q / rows if b_q is not None else None
        weights, biases = (w_q, w_k, projections.w_v), (b_q, b_k, projections.b_v)
    _assign(module.qkv.weight, torch.cat(weights), like=projections.w_v)
    if projections.has_bias:
        zeros = torch.zeros_like(projections.w_v[:, 0])
        bias = torch.cat([zeros if part is None else part for part in biases])
        source = next((part for part in biases[::-1] if part is not None), projections.w_v)
        _assign(module.qkv.bias, bias, like=source)


def _assign(parameter: Tensor, value: Tensor, *, like: Tensor) -> None:
    """Copy `value` into `parameter`, which is then frozen if the pretrained tensor was."""
    parameter.copy_(value)
    parameter.requires_grad_(like.requires_grad)


def tied_map(
    w_q: Float[Tensor, "e e"], w_k: Float[Tensor, "e e"], *, num_heads: int
) -> Float[Tensor, "e e"]:
    r"""Return, head by head, the map T whose scores Tx.Ty are nearest to those of the two given maps.

    :math:`T^\top T` is the positive semidefinite matrix nearest in Frobenius norm to the symmetric part of
    :math:`W_Q^\top W_K`. That part has at most d positive eigenvalues, so T fits the head exactly.
    """
    heads_q = w_q.detach().cpu().double().unflatten(0, (num_heads, -1))
    heads_k = w_k.detach().cpu().double().unflatten(0, (num_heads, -1))
    head_dim = heads_q.shape[1]
    # Both factors lie in the span of the 2d rows: the eigenproblem is solved there, not in all e dimensions.
    basis, inside = torch.linalg.qr(torch.cat([heads_q, heads_k], 1).mT)
    product = inside[..., :head_dim] @ inside[..., head_dim:].mT
    values, vectors = torch.linalg.eigh((product + product.mT) / 2)
    values, vectors = values[:, -head_dim:].clamp_min(0), vectors[..., -head_dim:]
    tied = (values.sqrt().unsqueeze(-2) * (basis @ vectors)).mT
    return tied.flatten(0, 1).to(w_q)


def key_gauge(
    w_q: Float[Tensor, "e e"], w_k: Float[Tensor, "e e"], *, num_heads: int, key_scale: float
) -> Float[Tensor, " h"]:
    r"""Return the factor by which each head's keys are multiplied and its queries divided.

    Dot products do not see it, so its pretrained value is arbitrary; distances do. It is the power of two
    (no digit of a weight is lost) nearest to `key_scale` :math:`\sqrt{\|W_Q\|_F/\|W_K\|_F}`.
    """
    norm_q = w_q.detach().float().unflatten(0, (num_heads, -1)).flatten(1).norm(dim=1)
    norm_k = w_k.detach().float().unflatten(0, (num_heads, -1)).flatten(1).norm(dim=1)
    ratio = torch.where((norm_q > 0) & (norm_k > 0), norm_q / norm_k, torch.ones_like(norm_q))
    return (key_scale * ratio.sqrt()).log2().round().exp2().to(w_q)
