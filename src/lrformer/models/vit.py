"""The vision transformer, with any attention, any tokenizer and norms in either place."""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.attention import AttentionConfig, LRSAConfig
from lrformer.core import ConfigError
from lrformer.models.block import LAYER_NORM_EPS, PostNormBlock, PreNormBlock
from lrformer.models.mlp import check_mlp_ratio
from lrformer.models.pool import GlobalPool, Pool
from lrformer.models.residual_tokenizer import ResidualTokens
from lrformer.models.tokenizer import ConvTokens, PatchTokens, VectorTokens, resize_pos_embed

AnyTokens = PatchTokens | ConvTokens | ResidualTokens | VectorTokens


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Everything that makes a `VisionTransformer`; names as in timm.

    `final_norm=False` leaves out the LayerNorm after the last pre-norm block. A LayerNorm forgets how far a
    token is from the origin; without it a distance-aware head can see how far an input is from the data.
    """

    tokens: AnyTokens = field(default_factory=PatchTokens)
    attention: AttentionConfig = field(default_factory=LRSAConfig)
    num_classes: int = 10
    embed_dim: int = 384
    depth: int = 12
    num_heads: int = 6
    mlp_ratio: float = 4.0
    norm: Literal["pre", "post"] = "pre"
    final_norm: bool = True
    global_pool: GlobalPool = "token"
    drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("embed_dim", "depth", "num_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1.")
        if self.num_classes < 0:
            raise ConfigError(
                f"num_classes ({self.num_classes}) must be at least 0; 0 leaves out the classifier."
            )
        check_mlp_ratio(self.mlp_ratio, self.embed_dim)
        if self.norm not in ("pre", "post"):
            raise ConfigError(f"norm ({self.norm!r}) must be 'pre' or 'post'.")
        for name in ("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 0 and below 1.")

    def build(self) -> "VisionTransformer":
        """Return the model, with random weights."""
        return VisionTransformer(self)


class VisionTransformer(nn.Module):
    """Tokens, blocks, pooling and a linear classifier; `num_classes=0` gives features.

    It speaks timm's vocabulary: `forward_features`, `forward_head`, `num_features`,
    `reset_classifier`, `set_input_size`, `no_weight_decay`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.num_classes = config.num_classes
        self.embed_dim = self.num_features = config.embed_dim
        self.num_prefix_tokens = 1 if config.global_pool == "token" else 0

        self.tokenizer = config.tokens.build(config.embed_dim)
        self.cls_token = (
            nn.Parameter(torch.empty(1, 1, config.embed_dim)) if self.num_prefix_tokens else None
        )
        num_tokens = self.tokenizer.num_tokens + self.num_prefix_tokens
        self.pos_embed = nn.Parameter(torch.empty(1, num_tokens, config.embed_dim))
        self.pos_drop = nn.Dropout(config.drop_rate)
        block = PreNormBlock if config.norm == "pre" else PostNormBlock
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(
            block(
                config.embed_dim,
                config.num_heads,
                config.attention,
                mlp_ratio=config.mlp_ratio,
                attn_drop=config.attn_drop_rate,
                proj_drop=config.proj_drop_rate,
                drop_path=config.drop_path_rate * index / last,
            )
            for index in range(config.depth)
        )
        # Post-norm blocks end in a norm of their own.
        self.norm = (
            nn.LayerNorm(config.embed_dim, eps=LAYER_NORM_EPS)
            if config.norm == "pre" and config.final_norm
            else nn.Identity()
        )
        self.pool = Pool(config.global_pool, config.embed_dim)
        self.head_drop = nn.Dropout(config.drop_rate)
        self.head = nn.Identity()
        self.apply(_initialize)
        self.tokenizer.reset_parameters()
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        self.reset_classifier(config.num_classes)

    def forward(self, x: Tensor) -> Float[Tensor, "b c"]:
        """Return the logits, or the features when there is no classifier."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Float[Tensor, "b n e"]:
        """Return the tokens after the last block, class token first where there is one."""
        x = self.tokenizer(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], 1)
        x = self.pos_drop(x + self.pos_embed)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward_head(
        self, x: Float[Tensor, "b n e"], pre_logits: bool = False
    ) -> Float[Tensor, "b _"]:
        """Return the logits of tokens; their pooled features if `pre_logits`."""
        features = self.head_drop(self.pool(x))
        return features if pre_logits else self.head(features)

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Put a new classifier for `num_classes` on top; 0 removes it."""
        self.num_classes = num_classes
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.head.to(self.pos_embed)
        _initialize(self.head)

    def set_input_size(self, img_size: int) -> None:
        """Take pictures of another size: position embeddings are interpolated to the new grid."""
        old_grid = self.tokenizer.grid_size
        self.tokenizer.set_input_size(img_size)
        new_grid = self.tokenizer.grid_size
        assert old_grid is not None
        assert new_grid is not None
        resized = resize_pos_embed(
            self.pos_embed.detach(), old_grid, new_grid, num_prefix_tokens=self.num_prefix_tokens
        )
        self.pos_embed = nn.Parameter(resized, requires_grad=self.pos_embed.requires_grad)

    def no_weight_decay(self) -> set[str]:
        """Return the parameters that an optimizer should not decay, as timm asks for them."""
        return {"pos_embed", "cls_token"}


def _initialize(module: nn.Module) -> None:
    """Initialize one layer: truncated normal of width .02, as vision transformers are; zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        fan_in = module.weight[0].numel()
        nn.init.trunc_normal_(module.weight, std=math.sqrt(1 / fan_in))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
