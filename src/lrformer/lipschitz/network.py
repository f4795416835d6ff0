"""How constants compose: residuals, blocks, whole networks, heads and certified radii (theorems 11, 12)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.lipschitz.bound import Bound
from lrformer.lipschitz.norms import spectral_norm
from lrformer.lipschitz.scalar import Scalar


def residual(branch: Scalar) -> Scalar:
    """Return the constant of x + g(x)."""
    return 1 + branch


def post_norm_block(norm_1: Scalar, attention: Scalar, norm_2: Scalar, mlp: Scalar) -> Scalar:
    """Return the constant of N_2(y + MLP(y)), y = N_1(x + attention(x)); all in one norm."""
    return norm_1 * norm_2 * (1 + attention) * (1 + mlp)


def pre_norm_block(norm_1: Scalar, attention: Scalar, norm_2: Scalar, mlp: Scalar) -> Scalar:
    """Return the constant of y + MLP(N_2(y)), y = x + attention(N_1(x)); all in one norm."""
    return (1 + norm_1 * attention) * (1 + norm_2 * mlp)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One map of a chain and its constants in both norms of token matrices."""

    name: str
    frobenius: float
    max_token: float


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The constant of a whole network from L2 on the input to L2 on the logits.

    Attributes:
        bound: the product; infinite with a reason where a stage has none, or where it overflows.
        log10: its decimal logarithm, which survives an overflow.
        switch: how many stages are taken in the Frobenius norm before the one change to max-token.
    """

    bound: Bound
    log10: float
    switch: int


def network(
    stages: Sequence[Stage], *, mean_pooled_tokens: int | None = None, sigma_head: float = 1.0
) -> Chain:
    """Return the smallest product over the place of the one change of norm (theorem 11).

    Since M <= |.|_F the chain may change from F to max once, at no cost, and never back.

    Args:
        mean_pooled_tokens: the number of tokens that a mean pool averages; None for a class token.
        sigma_head: the constant of what follows the pooling.
    """
    best, best_switch = math.inf, 0
    for switch in range(len(stages) + 1):
        total = _log10_product(
            *(stage.frobenius for stage in stages[:switch]),
            *(stage.max_token for stage in stages[switch:]),
        )
        if switch == len(stages) and mean_pooled_tokens is not None:
            total -= 0.5 * math.log10(mean_pooled_tokens)
        if total < best:
            best, best_switch = total, switch
    log10 = math.inf if math.inf in (best, sigma_head) else best + _log10_product(sigma_head)
    if math.isinf(log10) and log10 > 0:
        missing = [s.name for s in stages if math.isinf(min(s.frobenius, s.max_token))]
        reason = (
            f"no constant exists for: {', '.join(missing)}" if missing else "a factor is infinite"
        )
        return Chain(bound=Bound(value=math.inf, norm="F", reason=reason), log10=log10, switch=0)
    if log10 > 300:
        reason = f"the product is finite but 10^{log10:.0f}, too large for a float: vacuous"
        return Chain(
            bound=Bound(value=math.inf, norm="F", reason=reason), log10=log10, switch=best_switch
        )
    # The sum of logarithms is rounded; the factor keeps the product an upper bound.
    value = 10**log10 * (1 + 1e-9)
    return Chain(bound=Bound(value=value, norm="F"), log10=log10, switch=best_switch)


def random_feature_head(weight: Float[Tensor, "f e"], beta: Float[Tensor, "f c"]) -> float:
    """Return the constant sqrt(2 / f) sigma(W) sigma(beta) of logits sqrt(2 / f) cos(W x + b) beta."""
    return math.sqrt(2 / weight.shape[0]) * spectral_norm(weight) * spectral_norm(beta)


def random_feature_logit_bound(beta: Float[Tensor, "f c"]) -> Float[Tensor, " c"]:
    """Return the largest value that each logit of a random-feature head can take, at any input."""
    beta = beta.detach().double()
    return math.sqrt(2 / beta.shape[0]) * beta.abs().sum(dim=0)


def certified_radius(logits: Float[Tensor, "b c"], *, constant: float) -> Float[Tensor, " b"]:
    """Return the L2 radius within which each argmax cannot change: margin / (sqrt(2) L).

    A difference of two logits is sqrt(2) L-Lipschitz when the logits are L-Lipschitz; at an infinite
    constant every radius is zero, and so it is without a margin.
    """
    return radius_of_margin(margins(logits.double()), constant=constant)


def radius_of_margin(
    margin: Float[Tensor, " b"], *, constant: float | Float[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """Return `certified_radius` for logits with these margins, under one constant or one each."""
    return torch.where(margin == 0, margin, margin / (math.sqrt(2) * constant))


def bi_lipschitz(branches: Sequence[float]) -> tuple[float, float]:
    """Return (L1, L2) of a chain of residual maps x + g(x) with these constants for g (theorem 13).

    L1 = prod (1 - a) as long as every a < 1, otherwise 0: then distances may collapse.
    """
    low = math.prod(max(0.0, 1 - a) for a in branches)
    return low, math.prod(1 + a for a in branches)


def margins(logits: Float[Tensor, "b c"]) -> Float[Tensor, " b"]:
    """Return how far the largest logit is above the second; what is no row of logits has no margin."""
    if not has_margins(logits):
        raise ConfigError(
            f"logits have shape {tuple(logits.shape)}; a margin needs (batch, classes) with at least two classes."
        )
    top = torch.topk(logits, 2, dim=-1).values
    return top[:, 0] - top[:, 1]


def has_margins(logits: Float[Tensor, "..."]) -> bool:
    """Return whether these are rows of logits of two classes or more."""
    return logits.ndim == 2 and logits.shape[1] > 1


def _log10_product(*factors: float) -> float:
    """Return the logarithm of a product; where one factor has no bound, zero elsewhere does not help."""
    # Not a number, and so not below infinity, is what zero times infinity makes inside a stage.
    if not all(factor < math.inf for factor in factors):
        return math.inf
    return sum(math.log10(factor) if factor > 0 else -math.inf for factor in factors)
