"""Looking at the validation split: during training for the log, after it for temperature and threshold."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lrformer.core import make_generator
from lrformer.core.modes import evaluating
from lrformer.data import DeviceBatches
from lrformer.heads import Predictive
from lrformer.heads.predictive import concatenate
from lrformer.methods import (
    AbstentionRule,
    Method,
    Temperature,
    fit_abstention,
    fit_temperature,
)
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.metrics import (
    accuracy,
    brier_score,
    expected_calibration_error,
    logit_norms,
    negative_log_likelihood,
    overconfidence,
)
from lrformer.training.criterion import Criterion
from lrformer.training.run_folder import Decision

NUM_BINS = 15
# Validation inputs above a threshold; fewer say little of where it should be.
LEAST_ABOVE = 5
LEAST_FOR_TEMPERATURE = 50
# Classes in one line.
MOST_NAMED = 5


@torch.no_grad()
def predict_split(
    method: Method, batches: DeviceBatches, *, dtype: torch.dtype | None = None
) -> tuple[Predictive, Int[Tensor, " b"]]:
    """Return the prediction for every sample of `batches` and the labels, on the CPU.

    A method whose posterior is missing, or whose ensemble is not complete, gives the logits of what
    is in training instead.
    """
    parts, labels = [], []
    with evaluating(method):
        for batch in batches.epoch():
            with torch.autocast(batches.device.type, dtype, enabled=dtype is not None):
                if method.needs_posterior:
                    part = Predictive(logits=_training_logits(method, batch.inputs, batch.labels))
                else:
                    # The same draws for every batch, as in `lrformer.evaluation`.
                    part = method.predict(batch.inputs, make_generator(0, batches.device))
            parts.append(part.to("cpu"))
            labels.append(batch.labels.cpu())
    return concatenate(parts), torch.cat(labels)


def _training_logits(method: Method, x: Tensor, y: Tensor) -> Tensor:
    if not isinstance(method.criterion, Criterion):
        return method(x).float()
    with method.criterion.recording() as recorded:
        method.loss(x, y)
    return recorded[0] if recorded else method(x).float()


def describe_predictions(predictive: Predictive, labels: Int[Tensor, " b"]) -> dict[str, Any]:
    """Return the figures that are logged: accuracy, likelihood, calibration, overconfidence, logit norm."""
    probs = predictive.probs.double()
    sure = overconfidence(probs, labels)
    return {
        "accuracy": float(accuracy(probs, labels)),
        "nll": float(negative_log_likelihood(probs, labels)),
        "brier": float(brier_score(probs, labels)),
        "ece": float(expected_calibration_error(probs, labels, num_bins=NUM_BINS)),
        "overconfidence": sure.rate,
        "confidence_when_wrong": sure.mean_confidence_when_wrong,
        "logit_norm": logit_norms(predictive.logits).mean,
    }


def fit_temperature_of(
    method: Method, predictive: Predictive, labels: Int[Tensor, " b"]
) -> Temperature:
    """Return the temperature from validation predictions of `method`, as its settings ask for it."""
    by_variance = isinstance(method, GaussianProcessMethod) and method.fits_temperature_by_variance
    return fit_temperature(predictive, labels, by_variance=by_variance)


def fit_decision(
    method: Method,
    predictive: Predictive,
    labels: Int[Tensor, " b"],
    *,
    true_positive_rate: float,
    score: str | None = None,
    temperature: Temperature | None = None,
) -> Decision:
    """Return temperature and threshold from validation predictions; the threshold is taken after the temperature.

    Args:
        score: of the threshold; None is the method's own.
        temperature: one that was fitted to them before.
    """
    temperature = temperature or fit_temperature_of(method, predictive, labels)
    rule = fit_abstention(
        temperature(predictive),
        score=score or method.default_score,
        true_positive_rate=true_positive_rate,
    )
    return Decision(
        temperature=temperature.value,
        variance_slope=temperature.variance_slope,
        score=rule.score,
        threshold=rule.threshold,
        true_positive_rate=true_positive_rate,
        num_validation=len(labels),
    )


def weak_classes(
    calibrated: Predictive, labels: Int[Tensor, " b"], class_names: Sequence[str]
) -> str | None:
    """Return a line that names the classes of which no validation sample is answered rightly, or None."""
    num_classes = len(class_names)
    is_right = calibrated.probs.argmax(-1) == labels
    counts = torch.bincount(labels, minlength=num_classes)
    right = torch.bincount(labels[is_right], minlength=num_classes)
    weak = ((counts > 0) & (right == 0)).nonzero()[:, 0].tolist()
    if not weak:
        return None
    named = ", ".join(f"{class_names[k]} (0 of {int(counts[k])})" for k in weak[:MOST_NAMED])
    more = f" and {len(weak) - MOST_NAMED:,} more" if len(weak) > MOST_NAMED else ""
    return f"warning: no validation sample of these classes is answered rightly: {named}{more}"


def rough_temperature(num_samples: int) -> str | None:
    """Return a warning where a temperature was fitted to so few samples that it says little, or None."""
    if num_samples >= LEAST_FOR_TEMPERATURE:
        return None
    return (
        f"warning: the temperature is rough, fitted to {num_samples} validation sample{'' if num_samples == 1 else 's'}. "
        "More make it finer (--val-fraction, or a larger val)"
    )


def rough_threshold(decision: Decision, calibrated: Predictive) -> str | None:
    """Return a warning where few validation inputs lie above the threshold, so that little is known of it, or None."""
    rule = AbstentionRule(score=decision.score, threshold=decision.threshold)
    accepted = int(rule.accepts(calibrated).sum())
    number = len(calibrated.logits)
    if number - accepted >= LEAST_ABOVE:
        return None
    from scipy.stats import binomtest

    interval = binomtest(accepted, number).proportion_ci(0.95, method="exact")
    return (
        f"warning: the threshold is rough, with {number - accepted} of {number:,} validation samples above it: asked for "
        f"{100 * decision.true_positive_rate:.4g}% of known inputs, it may accept {interval.low:.1%} to {interval.high:.1%} of them "
        "(95% interval). More validation samples make it finer (--val-fraction, or a larger val)"
    )
