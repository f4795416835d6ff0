"""Accuracy and the two proper scores: negative log-likelihood and Brier."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.metrics.inputs import Array, as_predictions
from lrformer.metrics.resampling import whole_sample

# Softmax in float32 can underflow to zero; one such sample must not make the whole mean infinite.
PROBABILITY_FLOOR = 1e-12


@dataclass(frozen=True, kw_only=True)
class ScoringMetrics:
    """Accuracy (higher is better), NLL in nats and Brier summed over classes (lower is better)."""

    num_samples: int
    num_classes: int
    accuracy: float
    nll: float
    brier: float


def correctness(probs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Return 1 where the most probable class is the label, 0 elsewhere; the first class wins a tie."""
    return (probs.argmax(dim=1) == labels).double()


def log_losses(probs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Return `-log p(label)` of every sample, with the probability floored at 1e-12."""
    return -probs.gather(1, labels[:, None])[:, 0].clamp_min(PROBABILITY_FLOOR).log()


def brier_losses(probs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Return the squared distance between probabilities and one-hot label of every sample, in [0, 2]."""
    truth = torch.nn.functional.one_hot(labels, probs.shape[1])
    return (probs - truth).square().sum(dim=1)


def balanced_accuracy_draws(
    counts: Float[Tensor, "draws b"], correct: Float[Tensor, " b"], labels: Int[Tensor, " b"]
) -> Float[Tensor, " draws"]:
    """Return the mean, over the classes that a draw holds, of the share of their samples that are right."""
    num_classes = int(labels.max()) + 1
    totals, right = (
        counts.new_zeros(len(counts), num_classes).index_add_(1, labels, values)
        for values in (counts, counts * correct.to(counts.dtype))
    )
    return (right / totals).nanmean(dim=1)


def balanced_accuracy(probs: Array, labels: Array) -> float:
    """Return the mean over the classes of the share of their samples that are right: every class counts alike."""
    checked, truth = as_predictions(probs, labels)
    correct = correctness(checked, truth)
    return float(balanced_accuracy_draws(whole_sample(len(truth)), correct, truth))


def accuracy(probs: Array, labels: Array) -> float:
    """Return the share of samples whose most probable class is their label."""
    return float(correctness(*as_predictions(probs, labels)).mean())


def negative_log_likelihood(probs: Array, labels: Array) -> float:
    """Return the mean of `-log p(label)`, in nats."""
    return float(log_losses(*as_predictions(probs, labels)).mean())


def brier_score(probs: Array, labels: Array) -> float:
    """Return the mean squared distance to the one-hot label, summed over classes: 0 is perfect, 2 the worst."""
    return float(brier_losses(*as_predictions(probs, labels)).mean())


def scoring_metrics(probs: Array, labels: Array) -> ScoringMetrics:
    """Return accuracy, NLL and Brier of one set of predictions."""
    checked, truth = as_predictions(probs, labels)
    return ScoringMetrics(
        num_samples=len(checked),
        num_classes=checked.shape[1],
        accuracy=float(correctness(checked, truth).mean()),
        nll=float(log_losses(checked, truth).mean()),
        brier=float(brier_losses(checked, truth).mean()),
    )
