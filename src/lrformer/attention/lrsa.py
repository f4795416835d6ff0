"""Lipschitz-regularized self-attention: squared distances over a norm of the sample."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrformer.attention.backends import norm_kernels, reference, resolve_backend
from lrformer.attention.coefficient import (
    CoefficientSettings,
    check_normalizer,
    lrsa_coefficient,
    tied_coefficient,
)
from lrformer.attention.masks import all_without_padding, check_inputs, check_tokens
from lrformer.attention.multihead import Masks, MultiheadSelfAttention, SharedKeywords
from lrformer.attention.registry import ATTENTIONS
from lrformer.core import ConfigError
from lrformer.core.full_precision import apply_without_rounding


def lrsa_attention(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    x: Float[Tensor, "b n e"],
    *,
    alpha: float | Float[Tensor, " h"],
    normalizer: str = "paper",
    eps: float = 1e-10,
    floor: float = 0.1,
    length_free: bool = False,
    key_padding_mask: Bool[Tensor, "b n"] | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "b h n d"]:
    r"""Return softmax(-alpha ||q_i - k_j||^2 / (||Q||_F ||X^T||_(inf,2) + eps)) v (eq. LRSA).

    Args:
        x: What q, k and v were projected from; its largest token norm is part of the normalizer.
        alpha: The paper's scalar factor, one for all heads or one a head.
        normalizer: What alpha is divided by, see `lrsa_coefficient`.
        key_padding_mask: True for padding, which is left out of the softmax and of both norms.
        backend: `auto`, `triton` (our kernels), `sdpa` (torch's) or `reference` (the whole matrix of
            weights). `auto` takes `triton` for 16-bit numbers on a GPU where it can do the call, else `sdpa`.
    """
    check_inputs(q, k, v, key_padding_mask, dropout_p=dropout_p)
    check_tokens(q, k, x, key_padding_mask)
    _check_alpha(alpha)
    check_normalizer(normalizer, length_free=length_free, floor=floor, eps=eps)
    q, k, v = all_without_padding(q, k, v, key_padding_mask)
    return _attend(
        q,
        k,
        v,
        x,
        key_padding_mask=key_padding_mask,
        dropout_p=dropout_p,
        backend=backend,
        settings=CoefficientSettings(alpha, normalizer, eps, floor, length_free),
    )


def _attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    x: Float[Tensor, "b n e"],
    *,
    key_padding_mask: Bool[Tensor, "b n"] | None,
    dropout_p: float,
    backend: str,
    settings: CoefficientSettings,
) -> Float[Tensor, "b h n d"]:
    """Return the attention of `lrsa_attention` for tokens that are checked, with padding set to zero."""
    masks = {"key_padding_mask": key_padding_mask, "dropout_p": dropout_p}
    kernels = norm_kernels(backend, q, k, v, **masks)
    if kernels is None or settings.normalizer == "m":  # which has no norm of q
        coefficient = _coefficient(q, k, x, key_padding_mask, settings)
        return resolve_backend(backend).squared_distance(q, k, v, coefficient, **masks)
    squares = kernels.squared_norms(q)
    coefficient, slope = tied_coefficient(squares, x, settings)
    return kernels.tied_squared_distance(q, v, coefficient, squares, slope)


def _coefficient(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    x: Float[Tensor, "b n e"],
    key_padding_mask: Bool[Tensor, "b n"] | None,
    settings: CoefficientSettings,
) -> Float[Tensor, "b h"]:
    return lrsa_coefficient(
        q,
        k,
        x,
        alpha=settings.alpha,
        normalizer=settings.normalizer,
        eps=settings.eps,
        floor=settings.floor,
        length_free=settings.length_free,
        key_padding_mask=key_padding_mask,
    )


def _check_alpha(alpha: float | Tensor) -> None:
    """Raise unless a number is positive and finite; a tensor is trusted, looking would stall a GPU."""
    if isinstance(alpha, Tensor):
        return
    if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ConfigError(f"alpha ({alpha!r}) must be positive and finite.")


class LRSA(MultiheadSelfAttention):
    r"""Multi-head Lipschitz-regularized self-attention (eq. LRSA).

    :math:`\|Q\|_F` is taken per sample and per head, the largest token norm per sample over the module's
    own input, and there is no :math:`1/\sqrt d`.

    `alpha` is a buffer with one value a head, so it travels in the `state_dict`.

    Departs: queries and keys are tied by default. The paper writes two matrices, but its parameter count
    (19.9M) is that of tied ones, and only tied LRSA is Lipschitz. With `tie_qk=False` and more than one
    head the map jumps where :math:`XW_Q=0` (theorem 1 of docs/lipschitz.md): it has **no** Lipschitz constant
    unless `normalizer` is `floor` or `symmetric`. Untied is there to convert pretrained models.

    Args:
        alpha: The paper's scalar factor: larger is sharper, and the Lipschitz constant grows with it.
        normalizer: `paper`, `floor`, `symmetric` or `m`, see `lrsa_coefficient`. With `m`, alpha is the
            tau of theorem 5, for which 16 is a good start.
        eps: Added to the product in the denominator.
        floor: Smallest ratio of :math:`\|Q\|_F` to the token norm that `normalizer="floor"` lets act.
        length_free: Multiply alpha by the root of the number of tokens, so that one value is one
            temperature at every length (100 at 197 tokens is 7.1 length-free).
        learnable_alpha: Learn a positive factor on alpha for each head; it starts at one.
    """

    alpha: Float[Tensor, " h"]

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        alpha: float = 100.0,
        tie_qk: bool = True,
        qkv_bias: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        normalizer: str = "paper",
        eps: float = 1e-10,
        *,
        floor: float = 0.1,
        length_free: bool = False,
        learnable_alpha: bool = False,
        **shared: Unpack[SharedKeywords],
    ) -> None:
        super().__init__(
            dim,
            num_heads,
            tie_qk=tie_qk,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            **shared,
        )
        _check_alpha(alpha)
        check_normalizer(normalizer, length_free=length_free, floor=floor, eps=eps)
        self.normalizer = normalizer
        self.eps = eps
        self.floor = floor
        self.length_free = length_free
        device = shared.get("device")
        self.register_buffer("alpha", torch.full((num_heads,), float(alpha), device=device))
        self.log_alpha_factor = (
            nn.Parameter(torch.zeros(num_heads, device=device)) if learnable_alpha else None
        )

    def _apply(self, fn, recurse=True):
        up = super()._apply
        # In float16 a large alpha would be infinite.
        apply_without_rounding(self, ("alpha",), lambda: up(fn, recurse), least=torch.float32)
        return self

    def effective_alpha(self) -> Float[Tensor, " h"]:
        """Return alpha for each head, with its learned factor."""
        if self.log_alpha_factor is None:
            return self.alpha
        return self.alpha * self.log_alpha_factor.exp()

    def check_masks(
        self,
        x: Float[Tensor, "b n e"],
        attn_mask: Tensor | None,
        is_causal: bool,
        key_padding_mask: Tensor | None,
    ) -> Masks:
        """Return the padding mask; a mask that differs between queries raises.

        A boolean `attn_mask` that is the same for every query, (b, 1, 1, n), hides keys as padding does
        and is read as such.
        """
        if is_causal:
            raise ConfigError(
                "is_causal (True) is not possible with LRSA: its normalizer reads every token, so the "
                "future would leak into the past; use DotProductAttention for causal models."
            )
        if attn_mask is not None:
            hides_whole_keys = (
                attn_mask.dtype == torch.bool
                and attn_mask.shape == (x.shape[0], 1, 1, x.shape[1])
                and key_padding_mask is None
            )
            if not hides_whole_keys:
                raise ConfigError(
                    f"attn_mask of shape {tuple(attn_mask.shape)} and dtype {attn_mask.dtype} is not "
                    f"possible with LRSA: its normalizer reads every token, so what a query may not see "
                    f"would leak through it; to leave tokens out for all queries, give key_padding_mask."
                )
            key_padding_mask = ~attn_mask[:, 0, 0, :]
        return super().check_masks(x, None, is_causal, key_padding_mask)

    def attend(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n d"],
        x: Float[Tensor, "b n e"],
        *,
        masks: Masks,
        dropout_p: float,
    ) -> Float[Tensor, "b h n d"]:
        """Return the values averaged by the softmax of the regularized squared distances."""
        return _attend(
            q,
            k,
            v,
            x,
            key_padding_mask=masks.padding,
            dropout_p=dropout_p,
            backend=self.backend,
            settings=self._settings(q),
        )

    def weights(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        x: Float[Tensor, "b n e"],
        *,
        masks: Masks,
    ) -> Float[Tensor, "b h n n"]:
        """Return the softmax of the regularized squared distances."""
        return reference.squared_distance_weights(
            q, k, self.coefficient(q, k, x, masks.padding), key_padding_mask=masks.padding
        )

    def coefficient(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        x: Float[Tensor, "b n e"],
        key_padding_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h"]:
        """Return this module's factor in front of the squared distances (eq. 5)."""
        return _coefficient(q, k, x, key_padding_mask, self._settings(q))

    def _settings(self, q: Tensor) -> CoefficientSettings:
        """Return the settings of the coefficient, alpha as wide as that of `q` will be."""
        wide = torch.promote_types(q.dtype, torch.float32)
        alpha = self.effective_alpha().to(wide)
        return CoefficientSettings(alpha, self.normalizer, self.eps, self.floor, self.length_free)

    def extra_repr(self) -> str:
        """Return the part of `repr` that names the settings."""
        alphas = self.alpha.tolist() if not self.alpha.is_meta else ["?"]
        alpha = f"{alphas[0]:g}" if len(set(alphas)) == 1 else "per head"
        return f"{super().extra_repr()}, alpha={alpha}, normalizer={self.normalizer}"


@dataclass(frozen=True, kw_only=True)
class LRSAConfig:
    """Settings of `LRSA`."""

    alpha: float = 100.0
    tie_qk: bool = True
    qkv_bias: bool = False
    normalizer: str = "paper"
    eps: float = 1e-10
    floor: float = 0.1
    length_free: bool = False
    learnable_alpha: bool = False

    def build(
        self, dim: int, num_heads: int, *, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> LRSA:
        """Return the module for tokens of width `dim`."""
        return LRSA(
            dim,
            num_heads,
            alpha=self.alpha,
            tie_qk=self.tie_qk,
            qkv_bias=self.qkv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            normalizer=self.normalizer,
            eps=self.eps,
            floor=self.floor,
            length_free=self.length_free,
            learnable_alpha=self.learnable_alpha,
        )


ATTENTIONS.register("lrsa")(LRSAConfig)
ATTENTIONS.register("lrsa_m")(partial(LRSAConfig, normalizer="m", alpha=16.0))
