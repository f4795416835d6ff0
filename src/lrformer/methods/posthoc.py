"""After training, on any method: a temperature and a threshold for abstention, fitted on validation."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lrformer.core import ConfigError, NotFiniteError
from lrformer.heads import Predictive

_LOG_TEMPERATURE_RANGE = (math.log(1e-2), math.log(1e2))
# Of slope times mean variance; beyond the last the temperature is as good as proportional to the deviation.
_SLOPES = tuple(2.0**power for power in range(-4, 7))
# By which a slope has to lower the summed loss: half of the 95% point of chi-square with one degree of freedom.
_LEAST_GAIN = 1.92
# Of the logarithm of a temperature; the coarse one is enough to compare slopes.
_FINE, _COARSE = 1e-6, 1e-2


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """What logits are divided by: `value sqrt(1 + variance_slope variance)`.

    Attributes:
        value: one number for all inputs (Guo et al. 2017); 1 changes nothing.
        variance_slope: how much more the logits of an input with a large posterior variance are divided by; 0 leaves
            the variance out. With one variance for each class their mean counts: one divisor for all logits of an input.
    """

    value: float
    variance_slope: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.value < math.inf:
            raise ConfigError(f"value ({self.value}) must be positive, and finite.")
        if not 0 <= self.variance_slope < math.inf:
            raise ConfigError(
                f"variance_slope ({self.variance_slope}) must not be negative, and finite."
            )

    @property
    def is_at_the_top(self) -> bool:
        """Whether a fit ended at the largest temperature, where a model is told to be sure of nothing."""
        return not self.variance_slope and math.log(self.value) > _LOG_TEMPERATURE_RANGE[1] - 1e-3

    def __call__(self, predictive: Predictive) -> Predictive:
        """Return the prediction with logits and samples divided, and the variance by the square of `value`.

        Kernel distances are geometry, not confidence, and stay as they are.
        """
        samples, variance = predictive.samples, predictive.variance
        divisor: float | Tensor = self.value
        if self.variance_slope:
            growth = 1 + self.variance_slope * _posterior_variance(predictive)
            divisor = self.value * growth.sqrt().unsqueeze(-1)
        return replace(
            predictive,
            logits=predictive.logits / divisor,
            samples=None if samples is None else samples / divisor,
            variance=None if variance is None else variance / self.value**2,
        )


def _posterior_variance(predictive: Predictive) -> Float[Tensor, " b"]:
    if predictive.variance is None:
        raise ConfigError(
            "this prediction has no posterior variance, by which its temperature could grow."
        )
    return predictive.uncertainty("variance")


@torch.no_grad()
def fit_temperature(
    validation: Predictive,
    y: Int[Tensor, " b"] | Int[np.ndarray, " b"],
    *,
    by_variance: bool = False,
) -> Temperature:
    """Return the temperature of least negative log-likelihood on `validation`, which is held-out data.

    One imagined input, whose label is any possible class with equal chance, counts with the others. Without it a
    model that makes no mistake on `validation` would be told to be certain of everything, far away too.

    Args:
        by_variance: whether it may grow with the posterior variance. The slope is then one of a few, or none at all
            where the likelihood would not tell it from none.
    """
    _check_predictive("validation", validation)
    if not isinstance(y, Tensor | np.ndarray):
        raise ConfigError(f"y is a {type(y).__name__}; give a tensor or an array of class indices.")
    if isinstance(y, np.ndarray) and y.dtype.kind in "iu":
        # torch knows no other order of bytes, and few unsigned types.
        y = np.ascontiguousarray(y, dtype=np.int64)
    y = torch.as_tensor(y, device=validation.logits.device)
    if y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
        raise ConfigError(
            f"y is {y.dtype} of shape {tuple(y.shape)}; it must hold a class index for each prediction."
        )
    if y.shape[0] != validation.logits.shape[0]:
        raise ConfigError(
            f"y has {y.shape[0]} labels for {validation.logits.shape[0]} predictions."
        )
    num_classes = validation.logits.shape[1]
    if y.shape[0] == 0:
        raise ConfigError("validation is empty; a temperature needs at least one prediction.")
    if int(y.min()) < 0 or int(y.max()) >= num_classes:
        raise ConfigError(
            f"y has labels from {int(y.min())} to {int(y.max())}; they must lie in 0 to {num_classes - 1}."
        )
    y = y.long()
    # A class that an input cannot have, by a logit of minus infinity, stays so at every temperature.
    is_possible = validation.log_probs > -math.inf
    if not (validation.probs.isfinite().all() and is_possible.gather(1, y.unsqueeze(1)).all()):
        raise NotFiniteError(
            "validation has predictions that are not finite, or that rule out the label; no temperature fits them."
        )
    wide = replace(
        validation,
        logits=validation.logits.double(),
        samples=None if validation.samples is None else validation.samples.double(),
        variance=None if validation.variance is None else validation.variance.double(),
    )

    def loss(temperature: Temperature) -> float:
        log_probs = temperature(wide).log_probs
        seen = torch.nn.functional.nll_loss(log_probs, y, reduction="sum")
        return float(seen - log_probs[is_possible].mean())

    def best_with(relative_slope: float, tolerance: float) -> Temperature:
        # The range is that of the temperature at the mean variance, the same for every slope.
        growth = math.sqrt(1 + relative_slope)

        def at(log_temperature: float) -> Temperature:
            slope = relative_slope / mean_variance if relative_slope else 0.0
            return Temperature(value=math.exp(log_temperature) / growth, variance_slope=slope)

        return at(_golden_section(lambda x: loss(at(x)), *_LOG_TEMPERATURE_RANGE, tolerance))

    ends = (Temperature(value=math.exp(end)) for end in _LOG_TEMPERATURE_RANGE)
    if len({loss(at) for at in (*ends, Temperature(value=1.0))}) == 1:
        return Temperature(value=1.0)  # one class, say: no temperature is better than another
    mean_variance = float(_posterior_variance(wide).mean()) if by_variance else 0.0
    if not math.isfinite(mean_variance):
        raise NotFiniteError(
            "validation has variances that are not finite; no temperature can grow with them."
        )
    plain = best_with(0.0, _FINE)
    if mean_variance <= 0:
        return plain
    losses = {slope: loss(best_with(slope, _COARSE)) for slope in _SLOPES}
    slope = min(losses, key=losses.__getitem__)
    return best_with(slope, _FINE) if losses[slope] < loss(plain) - _LEAST_GAIN else plain


def _check_predictive(name: str, predictive: object) -> None:
    if not isinstance(predictive, Predictive):
        raise ConfigError(
            f"{name} is a {type(predictive).__name__}; give the Predictive that predict returned."
        )


def _golden_section(function, low: float, high: float, tolerance: float) -> float:
    """Return where a function with one minimum has it."""
    shrink = (math.sqrt(5) - 1) / 2
    left, right = high - shrink * (high - low), low + shrink * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > tolerance:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - shrink * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + shrink * (high - low)
            at_right = function(right)
    return (low + high) / 2


def _uncertainty(predictive: Predictive, score: str) -> Float[Tensor, " b"]:
    """Return a score in float64, as evaluations take it: in float32 one minus a confidence has few values near zero."""
    return predictive.to(torch.float64).uncertainty(score)


@dataclass(frozen=True, kw_only=True)
class AbstentionRule:
    """Accept an input whose score is at most `threshold`; abstain from the others."""

    score: str
    threshold: float

    def accepts(self, predictive: Predictive) -> Bool[Tensor, " b"]:
        """Return which inputs the model should answer."""
        _check_predictive("predictive", predictive)
        return _uncertainty(predictive, self.score) <= self.threshold


@torch.no_grad()
def fit_abstention(
    validation: Predictive, *, score: str = "entropy", true_positive_rate: float = 0.95
) -> AbstentionRule:
    """Return the strictest rule that accepts at least `true_positive_rate` of in-distribution data."""
    if not 0 < true_positive_rate <= 1:
        raise ConfigError(
            f"true_positive_rate ({true_positive_rate}) must be above 0 and at most 1."
        )
    _check_predictive("validation", validation)
    scores = _uncertainty(validation, score).sort().values
    if len(scores) == 0:
        raise ConfigError("validation is empty; a threshold needs at least one prediction.")
    if scores.isnan().any():
        raise NotFiniteError(f"{score} is NaN for some of validation; no threshold fits it.")
    # Minus a hair, because 0.95 * 100 is a little above 95 in floating point.
    rank = max(math.ceil(true_positive_rate * len(scores) - 1e-9), 1)
    return AbstentionRule(score=score, threshold=float(scores[rank - 1]))
