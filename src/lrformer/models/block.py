"""Transformer layers: post-norm as the paper prints it, pre-norm as timm and the authors' module have it."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrformer.attention import AttentionConfig
from lrformer.models.mlp import Mlp

LAYER_NORM_EPS = 1e-6


class DropPath(nn.Module):
    """Stochastic depth: drop a whole branch for a random part of the samples, in training only."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "b n e"]) -> Float[Tensor, "b n e"]:
        """Return `x` with dropped samples at zero and the others scaled up to the same mean."""
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        kept = torch.empty((x.shape[0], 1, 1), dtype=x.dtype, device=x.device).bernoulli_(keep)
        return x * (kept / keep)

    def extra_repr(self) -> str:
        """Return the part of `repr` that names the rate."""
        return f"rate={self.rate:g}"


class Block(nn.Module):
    """The parts of a transformer layer; a subclass says where the norms stand."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attention: AttentionConfig,
        *,
        mlp_ratio: float = 4.0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.attn = attention.build(embed_dim, num_heads, attn_drop=attn_drop, proj_drop=proj_drop)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(embed_dim, int(embed_dim * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path)


class PreNormBlock(Block):
    """x + attn(norm(x)), then x + mlp(norm(x))."""

    def forward(
        self, x: Float[Tensor, "b n e"], key_padding_mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n e"]:
        """Return the tokens after both residual branches."""
        x = x + self.drop_path1(self.attn(self.norm1(x), key_padding_mask=key_padding_mask))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class PostNormBlock(Block):
    """norm(x + attn(x)), then norm(x + mlp(x)) (eq. lrformer-layer)."""

    def forward(
        self, x: Float[Tensor, "b n e"], key_padding_mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n e"]:
        """Return the tokens after both residual branches, normalized."""
        x = self.norm1(x + self.drop_path1(self.attn(x, key_padding_mask=key_padding_mask)))
        return self.norm2(x + self.drop_path2(self.mlp(x)))
