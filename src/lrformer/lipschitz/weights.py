"""From the weights of a multi-head attention to a `Bound`, by the theorem that fits."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.lipschitz import attention, lrsa
from lrformer.lipschitz.bound import Bound, Norm
from lrformer.lipschitz.maps import Normalizer
from lrformer.lipschitz.norms import smallest_singular_value, spectral_norm
from lrformer.lipschitz.scalar import Scalar

UNTIED_REASON = (
    "no constant exists: W_Q has a kernel that W_K does not share, and LRSA jumps where X W_Q = 0; "
    "tie q and k, set a floor, or use the symmetric or M normalizer"
)
BIASED_REASON = (
    "no theorem covers biases of q and k that are not tied with this normalizer: a key bias without a "
    "query bias lets the Jacobian diverge as X -> 0; tie q and k, drop the biases, or use the symmetric "
    "normalizer, which allows any"
)
DOT_PRODUCT_REASON = "no constant exists on unbounded tokens; give a radius, e.g. after LayerNorm"
FREE_VALUES_REASON = "no constant exists: L2 scores with values that are no function of q = x W_Q"
COSINE_REASON = "no constant exists: cosine attention needs normalized values and eps > 0"


@dataclass(frozen=True, kw_only=True)
class HeadWeights:
    """The matrices of one attention layer, head by head, acting on row vectors.

    Attributes:
        query: W_Q of each head.
        key: W_K of each head; None when tied.
        value: W_V of each head.
        output: the rows of W_O that each head meets.
        query_bias, key_bias: of q and k, where there are any; tied heads have one of both.
    """

    query: Float[Tensor, "h e d"]
    key: Float[Tensor, "h e d"] | None
    value: Float[Tensor, "h e d"]
    output: Float[Tensor, "h d o"]
    query_bias: Float[Tensor, "h d"] | None = None
    key_bias: Float[Tensor, "h d"] | None = None

    @property
    def is_tied(self) -> bool:
        """Return whether keys equal queries, by construction or by value, biases included."""
        if self.key is None:
            return True
        return torch.equal(self.key, self.query) and not bool(self.bias_gaps().any())

    def bias_gaps(self) -> Float[Tensor, " h"]:
        """Return |b_Q - b_K| of each head."""
        if self.key is None:
            return self.query.new_zeros(self.query.shape[0])
        zeros = torch.zeros_like(self.query[:, 0])
        query = zeros if self.query_bias is None else self.query_bias
        key = zeros if self.key_bias is None else self.key_bias
        return torch.linalg.vector_norm((query - key).double(), dim=-1)

    def query_bias_norms(self) -> Float[Tensor, " h"]:
        """Return |b_Q| of each head."""
        bias = torch.zeros_like(self.query[:, 0]) if self.query_bias is None else self.query_bias
        return torch.linalg.vector_norm(bias.double(), dim=-1)


def lrsa_bound(
    heads: HeadWeights,
    *,
    alpha: float | Float[Tensor, " h"],
    n: int,
    norm: Norm,
    normalizer: Normalizer = "paper",
    floor: float = 0.0,
) -> Bound:
    """Return the sound constant of multi-head LRSA with output matrix, or infinity with the reason.

    Args:
        alpha: the numerator's factor, for all heads or for each; tau for the M normalizer.
        n: the largest number of tokens that a sample will have.
        floor: r0 of the floor normalizer.
    """
    key = heads.query if heads.key is None else heads.key
    alphas = torch.as_tensor(alpha, dtype=torch.float64).expand(heads.query.shape[0]).tolist()
    brackets: list[Scalar] = []
    reason = ""
    biases = zip(heads.query_bias_norms().tolist(), heads.bias_gaps().tolist(), strict=True)
    for w_q, w_k, bias, a in zip(heads.query, key, biases, alphas, strict=True):
        settings: dict[str, Any] = {"alpha": a, "n": n, "norm": norm}
        if heads.is_tied or not any(bias):
            bracket, reason = _lrsa_bracket(
                w_q, w_k, heads.is_tied, normalizer=normalizer, floor=floor, **settings
            )
        else:
            bracket, reason = _biased_bracket(
                w_q, w_k, *bias, normalizer=normalizer, floor=floor, **settings
            )
        if math.isinf(float(bracket)):
            return Bound(value=math.inf, norm=norm, reason=reason)
        brackets.append(bracket)
    return Bound(value=_combine(heads, brackets), norm=norm, reason=reason)


def _lrsa_bracket(
    w_q: Tensor,
    w_k: Tensor,
    is_tied: bool,
    *,
    alpha: float,
    n: int,
    norm: Norm,
    normalizer: Normalizer,
    floor: float,
) -> tuple[Scalar, str]:
    sigma_q, sigma_k = spectral_norm(w_q), spectral_norm(w_k)
    if normalizer == "m" and is_tied:
        return lrsa.lrsa_m(sigma_q, tau=alpha, n=n, norm=norm), "theorem 5"
    if normalizer == "inf" and is_tied:
        reason = "theorem 5, inf variant" if norm == "max" else "no theorem in the Frobenius norm"
        return lrsa.lrsa_inf(sigma_q, alpha=alpha, n=n, norm=norm), reason
    if normalizer in {"m", "inf"}:
        return math.inf, f"the '{normalizer}' normalizer has a theorem for tied q and k only"
    if normalizer == "symmetric" and not is_tied:
        sigma_qk = spectral_norm(torch.cat([w_q, w_k], dim=1))
        bracket = lrsa.lrsa_symmetric(sigma_q, sigma_k, sigma_qk, alpha=alpha, n=n, norm=norm)
        return bracket, "theorem 4"
    if normalizer == "floor" and floor > 0:
        if is_tied:
            bracket = lrsa.lrsa_tied_floor(sigma_q, alpha=alpha, floor=floor, n=n, norm=norm)
            return bracket, "theorem 3, tied"
        bracket = lrsa.lrsa_floor(sigma_q, sigma_k, alpha=alpha, floor=floor, n=n, norm=norm)
        return bracket, "theorem 3"
    if is_tied:
        return lrsa.lrsa_tied(sigma_q, alpha=alpha, n=n, norm=norm), "theorem 2"
    lowest = smallest_singular_value(w_q)
    # Rounding can make a rank-deficient matrix look injective; the bound would then be absurd anyway.
    if lowest > 1e-12 * sigma_q:
        bracket = lrsa.lrsa_floor(sigma_q, sigma_k, alpha=alpha, floor=lowest, n=n, norm=norm)
        return bracket, "theorem 3, injective W_Q"
    return math.inf, UNTIED_REASON


def _biased_bracket(
    w_q: Tensor,
    w_k: Tensor,
    query_bias: float,
    bias_gap: float,
    *,
    alpha: float,
    n: int,
    norm: Norm,
    normalizer: Normalizer,
    floor: float,
) -> tuple[Scalar, str]:
    """Return the bracket of an untied head with biases; a tied one may have any, by theorem 2."""
    sigma_q, sigma_k = spectral_norm(w_q), spectral_norm(w_k)
    settings: dict[str, Any] = {"alpha": alpha, "n": n, "norm": norm}
    if normalizer == "symmetric":
        sigma_qk = spectral_norm(torch.cat([w_q, w_k], dim=1))
        bracket = lrsa.lrsa_symmetric(sigma_q, sigma_k, sigma_qk, has_biases=True, **settings)
        return bracket, "theorem 4, with biases"
    if normalizer == "floor" and floor > 0:
        biases = {"query_bias": query_bias, "bias_gap": bias_gap}
        bracket = lrsa.lrsa_floor_biased(sigma_q, sigma_k, floor=floor, **biases, **settings)
        is_finite = math.isfinite(float(bracket))
        return bracket, "theorem 3, with biases" if is_finite else BIASED_REASON
    return math.inf, BIASED_REASON


def l2_bound(heads: HeadWeights, *, n: int, norm: Norm, is_provable: bool) -> Bound:
    """Return the sound constant of L2 attention with values x W W' W_V / sqrt(d) and output matrix."""
    if not is_provable or not heads.is_tied:
        return Bound(value=math.inf, norm=norm, reason=FREE_VALUES_REASON)
    own: list[Scalar] = []
    effective: list[Scalar] = []
    for w, w_v, w_o in zip(heads.query, heads.value, heads.output, strict=True):
        w, t = w.detach().double(), w.detach().double().T @ w_v.detach().double()
        t = t / math.sqrt(w.shape[1])
        own.append(_l2_head(w, t, n, norm))
        effective.append(_l2_head(w, t @ w_o.detach().double(), n, norm))
    sigma_o = spectral_norm(heads.output.flatten(0, 1))
    value = attention.multi_head_l2(own, sigma_o=sigma_o, effective_heads=effective)
    return Bound(value=float(value), norm=norm, reason="theorem 6")


def _l2_head(w: Tensor, t: Tensor, n: int, norm: Norm) -> Scalar:
    sigmas = (spectral_norm(w), spectral_norm(t), spectral_norm(w @ t))
    return attention.l2_attention(*sigmas, n=n, norm=norm)


def scsa_bound(
    heads: HeadWeights,
    *,
    tau: float | Float[Tensor, " h"],
    nu: float,
    eps: float,
    n: int,
    norm: Norm,
    are_values_normalized: bool = True,
) -> Bound:
    """Return the sound constant of scaled cosine attention with output matrix."""
    if eps <= 0 or not are_values_normalized:
        return Bound(value=math.inf, norm=norm, reason=COSINE_REASON)
    key = heads.query if heads.key is None else heads.key
    taus = torch.as_tensor(tau, dtype=torch.float64).flatten().expand(heads.query.shape[0]).tolist()
    squares = total = 0.0
    for w_q, w_k, w_v, w_o, t in zip(
        heads.query, key, heads.value, heads.output, taus, strict=True
    ):
        sigmas = (spectral_norm(w_q), spectral_norm(w_k), spectral_norm(w_v))
        head = float(attention.scsa(*sigmas, tau=t, nu=nu, eps=eps, n=n, norm=norm))
        squares += head**2
        total += head * spectral_norm(w_o)
    sigma_o = spectral_norm(heads.output.flatten(0, 1))
    return Bound(value=min(sigma_o * math.sqrt(squares), total), norm=norm, reason="theorem 8")


def dot_product_bound(
    heads: HeadWeights, *, n: int, norm: Norm, radius: float | None = None
) -> Bound:
    """Return the constant of dot-product attention on tokens within `radius`; infinite without one."""
    if radius is None:
        return Bound(value=math.inf, norm=norm, reason=DOT_PRODUCT_REASON)
    if radius < 0:
        raise ConfigError(f"radius ({radius}) must be >= 0.")
    key = heads.query if heads.key is None else heads.key
    brackets: list[Scalar] = []
    for w_q, w_k in zip(heads.query, key, strict=True):
        sigma_qk = spectral_norm(w_q.detach().double() @ w_k.detach().double().T)
        head_dim = w_q.shape[1]
        brackets.append(
            attention.dot_product_on_ball(
                sigma_qk, radius=radius, head_dim=head_dim, n=n, norm=norm
            )
        )
    reason = f"theorem 9, tokens within {radius:.4g}"
    return Bound(value=_combine(heads, brackets), norm=norm, reason=reason)


def head_gains(heads: HeadWeights) -> dict[str, Any]:
    """Return the spectral norms by which `attention.multi_head` combines the brackets of these heads."""
    pairs = list(zip(heads.value, heads.output, strict=True))
    return {
        "sigma_v": [spectral_norm(w_v) for w_v, _ in pairs],
        "sigma_o": spectral_norm(heads.output.flatten(0, 1)),
        "sigma_vo": [
            spectral_norm(w_v.detach().double() @ w_o.detach().double()) for w_v, w_o in pairs
        ],
    }


def _combine(heads: HeadWeights, brackets: list[Scalar]) -> float:
    return float(attention.multi_head(brackets, **head_gains(heads)))
