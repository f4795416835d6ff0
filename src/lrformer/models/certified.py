"""A transformer that keeps distances by proof: residual branches held below one in the Frobenius norm."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.core.modes import evaluating
from lrformer.core.transforms import is_traced_or_transformed
from lrformer.lipschitz import bi_lipschitz, gram_spectral_norm, spectral_norm
from lrformer.models.certified_branches import AnchoredAttention, CenteredMlp, CertifiedBranch
from lrformer.models.certified_prior import anchored_prior
from lrformer.models.mlp import check_mlp_ratio
from lrformer.models.presets import PRESETS
from lrformer.models.tokenizer import PatchTokens, VectorTokens

CertifiedPool = Literal["flatten", "avg"]
# Eight squarings leave at most 0.6% of the budget unused at width 384; six would leave 2.4%.
_GRAM_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class CertifiedConfig:
    """Everything that makes a `CertifiedTransformer`.

    Attributes:
        attn_budget: largest Lipschitz constant of each attention branch, below 1.
        mlp_budget: the same for each MLP branch.
        self_weight: how much of its attention a token keeps for itself at least.
        global_pool: `flatten` keeps all tokens as features, and with them all distances; `avg`
            averages them, which loses the lower constant.
    """

    tokens: PatchTokens | VectorTokens = field(default_factory=PatchTokens)
    num_classes: int = 10
    embed_dim: int = 192
    depth: int = 6
    num_heads: int = 6
    mlp_ratio: float = 2.0
    attn_budget: float = 0.5
    mlp_budget: float = 0.5
    self_weight: float = 0.5
    global_pool: CertifiedPool = "flatten"
    drop_rate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("embed_dim", "depth", "num_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1.")
        if self.num_classes < 0:
            raise ConfigError(
                f"num_classes ({self.num_classes}) must be at least 0; 0 leaves out the classifier."
            )
        check_mlp_ratio(self.mlp_ratio, self.embed_dim)
        if not 0 <= self.drop_rate < 1:
            raise ConfigError(f"drop_rate ({self.drop_rate}) must be at least 0 and below 1.")
        if not isinstance(self.tokens, PatchTokens | VectorTokens):
            raise ConfigError(
                f"tokens ({type(self.tokens).__name__}) must be PatchTokens or VectorTokens: other "
                "tokenizers lose distances before the first block."
            )
        if self.global_pool not in get_args(CertifiedPool):
            raise ConfigError(f"global_pool ('{self.global_pool}') must be 'flatten' or 'avg'.")

    def build(self) -> "CertifiedTransformer":
        """Return the model, with random weights."""
        return CertifiedTransformer(self)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Two-sided constants, for exact arithmetic: lower |x - y| <= |f(x) - f(y)| <= upper |x - y|.

    Attributes:
        lower, upper: L1 and L2 from the tokens that enter the first block to those that leave the last.
        input_lower, input_upper: the same from the input, through the embedding.
        logits_upper: an L2 constant of the logits; there is no lower one, classes are fewer.
        norm: the norm on token matrices; on inputs and logits it is the Euclidean norm.
        branches: the constant of each residual branch, in order.
    """

    lower: float
    upper: float
    input_lower: float
    input_upper: float
    logits_upper: float
    norm: str
    branches: tuple[float, ...]


class CertifiedBlock(nn.Module):
    """x + s_a attention(x), then x + s_m mlp(x): no LayerNorm, for it would forget distances."""

    def __init__(self, config: CertifiedConfig, prior: Float[Tensor, "h n n"]) -> None:
        super().__init__()
        width = config.embed_dim
        self.attn = AnchoredAttention(width, prior, budget=config.attn_budget)
        hidden_dim = int(width * config.mlp_ratio)
        self.mlp = CenteredMlp(width, hidden_dim, budget=config.mlp_budget)

    def forward(
        self, x: Float[Tensor, "b n e"], attn_scale: Float[Tensor, ""], mlp_scale: Float[Tensor, ""]
    ) -> Float[Tensor, "b n e"]:
        """Return the tokens after both residual branches."""
        x = x + self.attn(x, attn_scale)
        return x + self.mlp(x, mlp_scale)


class CertifiedTransformer(nn.Module):
    """Tokens, certified blocks and a linear classifier, with a `certificate()` and an `inverse()`.

    It has the methods of `VisionTransformer`, so whatever trains or reads one works on the other; only the size of its
    input is fixed.
    """

    def __init__(self, config: CertifiedConfig) -> None:
        super().__init__()
        self.config = config
        self.num_classes = config.num_classes
        self.embed_dim = config.embed_dim
        self.tokenizer = config.tokens.build(config.embed_dim)
        self.num_tokens = self.tokenizer.num_tokens
        is_flat = config.global_pool == "flatten"
        self.num_features = config.embed_dim * (self.num_tokens if is_flat else 1)
        self.pos_embed = nn.Parameter(torch.empty(1, self.num_tokens, config.embed_dim))
        prior = anchored_prior(
            self.num_tokens,
            config.num_heads,
            self_weight=config.self_weight,
            grid_size=self.tokenizer.grid_size,
        )
        self.blocks = nn.ModuleList(CertifiedBlock(config, prior) for _ in range(config.depth))
        self.head_drop = nn.Dropout(config.drop_rate)
        self.head = nn.Identity()
        self._cached: tuple[list[Tensor], Float[Tensor, " branches"]] | None = None
        self._folded: Float[Tensor, " branches"] | None = None
        # Gentle branches tell positions apart only if these are as large as the tokens.
        nn.init.trunc_normal_(self.pos_embed, std=1.0)
        _initialize_embedding(self.tokenizer.proj)
        self.reset_classifier(config.num_classes)

    def forward(self, x: Tensor) -> Float[Tensor, "b c"]:
        """Return the logits, or the features when there is no classifier."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Float[Tensor, "b n e"]:
        """Return the tokens after the last block."""
        return self.forward_blocks(self.tokenizer(x) + self.pos_embed)

    def forward_blocks(self, tokens: Float[Tensor, "b n e"]) -> Float[Tensor, "b n e"]:
        """Return what the certified blocks make of tokens: the map that keeps distances."""
        scales = self.scales()
        for index, block in enumerate(self.blocks):
            tokens = block(tokens, scales[2 * index], scales[2 * index + 1])
        return tokens

    def forward_head(
        self, x: Float[Tensor, "b n e"], pre_logits: bool = False
    ) -> Float[Tensor, "b _"]:
        """Return the logits of tokens; their pooled features if `pre_logits`."""
        pooled = x.flatten(1) if self.config.global_pool == "flatten" else x.mean(dim=1)
        features = self.head_drop(pooled)
        return features if pre_logits else self.head(features)

    def branches(self) -> list[CertifiedBranch]:
        """Return the residual branches in the order in which tokens meet them."""
        blocks = [block for block in self.blocks if isinstance(block, CertifiedBlock)]
        return [branch for block in blocks for branch in (block.attn, block.mlp)]

    def scales(self) -> Float[Tensor, " branches"]:
        """Return the factor of each branch, min(1, budget / bound).

        In training it is a differentiable function of the weights. Without gradients it is computed
        in float64, once, and again whenever a weight has changed by as much as one bit; code that is
        compiled, exported or transformed computes it every time, unless it is folded.
        """
        if self._folded is not None:
            return self._folded
        if self.training or torch.is_grad_enabled():
            return self._compute_scales(self._matrices())
        current = self._matrices()
        if is_traced_or_transformed():
            return self._compute_scales([matrix.double() for matrix in current])
        if self._cached is not None:
            known, scales = self._cached
            if all(
                old.device == new.device and old.dtype == new.dtype and torch.equal(old, new)
                for old, new in zip(known, current, strict=True)
            ):
                return scales
        scales = self._compute_scales([matrix.double() for matrix in current])
        self._cached = ([matrix.detach().clone() for matrix in current], scales)
        return scales

    @torch.no_grad()
    def fold_scales(self) -> None:
        """Keep the present factors for good, for export: weights that change later would not count."""
        with evaluating(self):
            self._folded = self.scales()

    def _matrices(self) -> list[Tensor]:
        return [w for branch in self.branches() for w in (branch.weight_in, branch.weight_out)]

    def _compute_scales(self, matrices: list[Tensor]) -> Float[Tensor, " branches"]:
        """Return the scales from Gram bounds: matrices of one shape are bounded in one batch."""
        upright = [m if m.shape[0] >= m.shape[1] else m.mT for m in matrices]
        # Numbers also where torch.jit.trace makes tensors of sizes: a set of those has another order every time.
        shapes = [tuple(map(int, matrix.shape)) for matrix in upright]
        bounds: dict[int, Tensor] = {}
        for shape in dict.fromkeys(shapes):
            rows = [i for i, other in enumerate(shapes) if other == shape]
            stacked = gram_spectral_norm(
                torch.stack([upright[i] for i in rows]), num_steps=_GRAM_STEPS
            )
            bounds.update(zip(rows, stacked, strict=True))
        return torch.stack(
            [
                branch.scale(bounds[2 * i], bounds[2 * i + 1])
                for i, branch in enumerate(self.branches())
            ]
        )

    def set_input_size(self, img_size: int) -> None:
        """Refuse another size: the prior of the attention and a flat head belong to one grid of tokens."""
        raise ConfigError(
            f"img_size ({img_size}) cannot be set: the prior of a certified model belongs to its {self.num_tokens} tokens; "
            "create another model."
        )

    @torch.no_grad()
    def certificate(self) -> Certificate:
        """Return the constants of the model as it is now; the matrices are decomposed in float64."""
        with evaluating(self):
            scales = self.scales().tolist()
        constants = tuple(
            scale
            * branch.bracket
            * spectral_norm(branch.weight_in)
            * spectral_norm(branch.weight_out)
            for branch, scale in zip(self.branches(), scales, strict=True)
        )
        lower, upper = bi_lipschitz(constants)
        embedding = torch.linalg.svdvals(self.tokenizer.proj.weight.double().flatten(1))
        is_injective = self.tokenizer.proj.weight[0].numel() <= self.tokenizer.proj.weight.shape[0]
        input_lower = lower * float(embedding[-1]) if is_injective else 0.0
        input_upper = upper * float(embedding[0])
        head = _head_constant(self.head)
        pool = 1.0 if self.config.global_pool == "flatten" else 1 / math.sqrt(self.num_tokens)
        return Certificate(
            lower=lower,
            upper=upper,
            input_lower=input_lower,
            input_upper=input_upper,
            logits_upper=input_upper * pool * head,
            norm="F",
            branches=constants,
        )

    @torch.no_grad()
    def inverse(
        self,
        tokens: Float[Tensor, "b n e"],
        *,
        tolerance: float = 1e-12,
        max_steps: int | None = None,
    ) -> Float[Tensor, "b n e"]:
        """Return the tokens that `forward_blocks` maps to `tokens`, by fixed-point iteration.

        x = y - g(x) is a contraction for every branch g, so it converges from anywhere. In float64
        the error is near `tolerance` relative to the tokens; in float32 it stops at rounding.

        Args:
            max_steps: for each branch; by default as many as its budget can ask for.
        """
        with evaluating(self):
            pairs = list(zip(self.branches(), self.scales(), strict=True))
            size = tokens.abs().amax().clamp_min(torch.finfo(tokens.dtype).tiny)
            relative = max(tolerance, 4 * torch.finfo(tokens.dtype).eps)
            accuracy = relative * float(size)
            for branch, scale in reversed(pairs):
                image, tokens = tokens, tokens - branch(tokens, scale)
                # A step shortens the change by the budget at least.
                enough = math.log(relative * (1 - branch.budget) / 10) / math.log(branch.budget)
                for _ in range(math.ceil(enough) if max_steps is None else max_steps):
                    previous, tokens = tokens, image - branch(tokens, scale)
                    # What is left is at most a / (1 - a) times the last change.
                    change = float((tokens - previous).abs().amax())
                    if change <= accuracy * (1 - branch.budget):
                        break
        return tokens

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Put a new classifier for `num_classes` on top; 0 removes it."""
        self.num_classes = num_classes
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        if isinstance(self.head, nn.Linear):
            # Tokens have unit variance, and there may be thousands of features: logits start small.
            nn.init.trunc_normal_(self.head.weight, std=0.2 / math.sqrt(self.num_features))
            nn.init.zeros_(self.head.bias)
        self.head.to(self.pos_embed)

    def no_weight_decay(self) -> set[str]:
        """Return the parameters that an optimizer should not decay, as timm asks for them."""
        return {"pos_embed"} | {
            name for name, _ in self.named_parameters() if name.endswith("log_temperature")
        }


def _head_constant(head: nn.Module) -> float:
    """Return the constant of what stands on the pooled features; of layers that are not known there is none."""
    if isinstance(head, nn.Linear):
        return spectral_norm(head.weight)
    return 1.0 if isinstance(head, nn.Identity) else math.inf


def _initialize_embedding(layer: nn.Linear | nn.Conv2d) -> None:
    """Start as a multiple of an isometry that gives tokens unit variance for inputs of unit variance."""
    flat = torch.empty(layer.weight.shape[0], layer.weight[0].numel())
    gain = math.sqrt(max(1.0, flat.shape[0] / flat.shape[1]))
    nn.init.orthogonal_(flat, gain=gain)
    with torch.no_grad():
        layer.weight.copy_(flat.view_as(layer.weight))
        if layer.bias is not None:
            layer.bias.zero_()


_MOONS = VectorTokens(num_inputs=2, num_tokens=8)
PRESETS.register("certified_two_moons")(
    CertifiedConfig(tokens=_MOONS, num_classes=2, embed_dim=24, depth=3, num_heads=8, mlp_ratio=4.0)
)
PRESETS.register("certified_two_moons_depth9")(
    CertifiedConfig(
        tokens=_MOONS,
        num_classes=2,
        embed_dim=24,
        depth=9,
        num_heads=8,
        mlp_ratio=4.0,
        attn_budget=0.2,
        mlp_budget=0.2,
    )
)
PRESETS.register("certified_digits")(
    CertifiedConfig(
        tokens=PatchTokens(img_size=8, patch_size=2, in_chans=1),
        embed_dim=64,
        depth=4,
        num_heads=4,
    )
)
PRESETS.register("certified_depth6_patch4_32")(
    CertifiedConfig(
        tokens=PatchTokens(img_size=32, patch_size=4),
        embed_dim=192,
        depth=6,
        num_heads=6,
        mlp_ratio=4.0,
    )
)
