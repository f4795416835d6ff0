"""How near attention heads are to where LRSA breaks, and how spread their weights are."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def singular_ratio(
    q: Float[Tensor, "b h n d"],
    x: Float[Tensor, "b n e"],
    *,
    key_padding_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h"]:
    """Return r = Z / M per sample and head; zero is the singular set of LRSA.

    Args:
        key_padding_mask: True marks padding, which enters neither norm.
    """
    if key_padding_mask is not None:
        q = q.masked_fill(key_padding_mask[:, None, :, None], 0)
        x = x.masked_fill(key_padding_mask[:, :, None], 0)
    z = torch.linalg.vector_norm(q, dim=(-2, -1))
    m = torch.linalg.vector_norm(x, dim=-1).amax(dim=-1)
    return z / m.clamp_min(torch.finfo(x.dtype).tiny)[:, None]


def attention_entropy(weights: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b n"]:
    """Return the entropy in nats of each row of attention weights: 0 one key, ln m uniform."""
    return torch.special.entr(weights).sum(dim=-1)
