"""Tokens that are easy, and tokens that break careless implementations."""

import torch
from torch import Tensor

KINDS = ("gauss", "offset", "huge_token", "equal", "zero")


def tokens(kind: str, batch: int, num_tokens: int, width: int, *, seed: int = 0) -> Tensor:
    """Return float64 tokens of a kind: a large common offset, one huge token, all equal, all zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, num_tokens, width, dtype=torch.float64, generator=generator)
    if kind == "offset":
        return x + 8 * torch.randn(1, 1, width, dtype=torch.float64, generator=generator)
    if kind == "huge_token":
        x[:, 0] *= 100
        return x
    if kind == "equal":
        return x[:, :1].expand(-1, num_tokens, -1).clone()
    if kind == "zero":
        return torch.zeros_like(x)
    return x


def projections(
    x: Tensor, num_heads: int, *, tie_qk: bool, seed: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v of shape (b, h, n, d); q and k are one tensor when tied."""
    generator = torch.Generator().manual_seed(seed)
    width = x.shape[-1]
    weights = torch.randn(3, width, width, dtype=x.dtype, generator=generator) / width**0.5
    q, k, v = (
        (x @ weight).unflatten(-1, (num_heads, -1)).transpose(1, 2).contiguous()
        for weight in weights
    )
    return q, q if tie_qk else k, v
