"""The definitions, written slowly: every pair of tokens by its difference, nothing rearranged."""

import math

import torch
from torch import Tensor


def lrsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    x: Tensor,
    *,
    alpha: float,
    normalizer: str = "paper",
    eps: float = 1e-10,
    floor: float = 0.1,
    length_free: bool = False,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """Sample by sample and head by head, over the valid tokens alone; padded rows come out zero."""
    samples = []
    for b in range(q.shape[0]):
        valid = (
            torch.arange(q.shape[2])
            if key_padding_mask is None
            else (~key_padding_mask[b]).nonzero().squeeze(-1)
        )
        largest = x[b, valid].norm(dim=-1).amax()
        heads = []
        for h in range(q.shape[1]):
            queries, keys, values = q[b, h, valid], k[b, h, valid], v[b, h, valid]
            size = queries.norm()
            if normalizer == "paper":
                denominator = size * largest
            elif normalizer == "floor":
                denominator = torch.maximum(size, floor * largest) * largest
            elif normalizer == "symmetric":
                denominator = ((queries.square().sum() + keys.square().sum()) / 2).sqrt() * largest
            else:
                denominator = largest * largest
            factor = alpha * (math.sqrt(len(valid)) if length_free else 1.0)
            distances = (queries.unsqueeze(1) - keys.unsqueeze(0)).square().sum(-1)
            weights = (-factor * distances / (denominator + eps)).softmax(-1)
            heads.append(torch.zeros_like(v[b, h]).index_copy(0, valid, weights @ values))
        samples.append(torch.stack(heads))
    return torch.stack(samples)


def l2(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    distances = (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)
    return (-distances / math.sqrt(q.shape[-1])).softmax(-1) @ v


def scsa(q: Tensor, k: Tensor, v: Tensor, *, tau: float, nu: float, eps: float) -> Tensor:
    q, k, v = (part / (part.square().sum(-1, keepdim=True) + eps).sqrt() for part in (q, k, v))
    return nu * (tau * torch.einsum("bhnd,bhmd->bhnm", q, k)).softmax(-1) @ v


def dot_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.einsum("bhnd,bhmd->bhnm", q, k) / math.sqrt(q.shape[-1])).softmax(-1) @ v
