"""Overconfidence as the paper defines it: wrong with high probability. And the norm of the logits, its lever."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError, NotFiniteError
from lrformer.metrics.inputs import Array, as_predictions, as_probs, as_share, as_tensor
from lrformer.metrics.resampling import weighted_mean, whole_sample
from lrformer.metrics.scoring import correctness

DEFAULT_THRESHOLD = 0.9


@dataclass(frozen=True, kw_only=True)
class Overconfidence:
    """How often, and how surely, the model is wrong.

    Attributes:
        rate: share of all samples that are wrong with a probability above `threshold`.
        rate_when_wrong: the same share of the wrong ones; None if nothing is wrong.
        mean_confidence_when_wrong: mean largest probability of the wrong ones; None if nothing is wrong.
        mean_confidence: mean largest probability of all samples.
    """

    threshold: float
    num_samples: int
    num_wrong: int
    rate: float
    rate_when_wrong: float | None
    mean_confidence_when_wrong: float | None
    mean_confidence: float


@dataclass(frozen=True, kw_only=True)
class LogitNorms:
    """Mean and standard deviation of the L2 norm of the logit vectors, which scales the confidence."""

    mean: float
    std: float


def overconfidence_draws(
    counts: Float[Tensor, "draws b"],
    confidence: Float[Tensor, " b"],
    wrong: Float[Tensor, " b"],
    *,
    threshold: float,
) -> dict[str, Float[Tensor, " draws"]]:
    """Return the four figures of every draw; the two about the wrong ones are NaN where nothing is wrong."""
    surely_wrong = wrong * (confidence > threshold)
    num_wrong = counts @ wrong
    return {
        "rate": weighted_mean(counts, surely_wrong),
        "rate_when_wrong": counts @ surely_wrong / num_wrong,
        "mean_confidence_when_wrong": counts @ (wrong * confidence) / num_wrong,
        "mean_confidence": weighted_mean(counts, confidence),
    }


def confidence_and_wrong(
    probs: Array, labels: Array | None
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Return the largest probability of every sample and 1 where it is wrong: everywhere without labels.

    The definition takes the largest probability of a class other than the label, which for a wrong prediction is
    the largest of all. An OOD set has no right answer, so that each of its predictions is wrong.
    """
    if labels is None:
        confidence = as_probs(probs).amax(dim=1)
        return confidence, confidence.new_ones(len(confidence))
    checked, truth = as_predictions(probs, labels)
    return checked.amax(dim=1), 1 - correctness(checked, truth)


def overconfidence(
    probs: Array, labels: Array | None = None, *, threshold: float = DEFAULT_THRESHOLD
) -> Overconfidence:
    """Return how often predictions are wrong with a probability above `threshold` (def. overconfidence).

    Args:
        labels: None for an OOD set, where every prediction is wrong.
    """
    bound = as_share(threshold, name="threshold")
    confidence, wrong = confidence_and_wrong(probs, labels)
    figures = overconfidence_draws(whole_sample(len(wrong)), confidence, wrong, threshold=bound)
    num_wrong = int(wrong.sum())
    return Overconfidence(
        threshold=bound,
        num_samples=len(wrong),
        num_wrong=num_wrong,
        rate=float(figures["rate"]),
        rate_when_wrong=float(figures["rate_when_wrong"]) if num_wrong else None,
        mean_confidence_when_wrong=(
            float(figures["mean_confidence_when_wrong"]) if num_wrong else None
        ),
        mean_confidence=float(figures["mean_confidence"]),
    )


def row_norms(logits: Array) -> Float[Tensor, " b"]:
    """Return the L2 norm of every sample's logits, or raise if one is not finite."""
    tensor = as_tensor(logits)
    if tensor.ndim != 2 or tensor.numel() == 0:
        raise ConfigError(
            f"logits has shape {tuple(tensor.shape)}; it must be (samples, classes), not empty."
        )
    norms = tensor.double().norm(dim=1)
    if not norms.isfinite().all():
        raise NotFiniteError(
            "logits has NaN or infinite entries; a model that diverged has no norm."
        )
    return norms


def logit_norms(logits: Array) -> LogitNorms:
    """Return mean and standard deviation (over the samples, not corrected) of the logits' L2 norm."""
    norms = row_norms(logits)
    return LogitNorms(mean=float(norms.mean()), std=float(norms.std(correction=0)))
