"""Selective prediction: how accurate the model is on the part of the data about which it is most certain."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.metrics.inputs import Array, as_predictions, as_scores, as_share
from lrformer.metrics.resampling import Ranking, cumulate, rank, sums_at, whole_sample
from lrformer.metrics.scoring import correctness

DEFAULT_COVERAGES = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class SelectiveMetrics:
    """AURC (lower is better) and the accuracy at each coverage when the most uncertain are left out."""

    aurc: float
    coverages: tuple[float, ...]
    accuracies: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RiskCoverageCurve:
    """The error rate (`risk`) on the most certain share (`coverage`) of the data, one point a distinct score."""

    coverage: tuple[float, ...]
    risk: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """How many samples and errors are accepted as the threshold rises, one column for each distinct score."""

    samples: Float[Tensor, "draws groups"]
    errors: Float[Tensor, "draws groups"]


def accepted_counts(
    counts: Float[Tensor, "draws b"], ranking: Ranking, correct: Float[Tensor, " b"]
) -> Accepted:
    """Return the cumulated counts of every draw, the most certain group first, after a column of zeros.

    Args:
        ranking: by uncertainty.
    """
    weights = counts.index_select(1, ranking.order).double()
    return Accepted(
        samples=cumulate(weights, ranking.ends),
        errors=cumulate(weights * (1 - correct[ranking.order]), ranking.ends),
    )


def aurc_draws(accepted: Accepted) -> Float[Tensor, " draws"]:
    """Return the area under the risk-coverage curve of every draw.

    The mean over k of the error rate among the k most certain samples. In a group of equal scores the errors are
    spread evenly (the mean over all orders), which sums to harmonic numbers: no loop over k.
    """
    num_samples = accepted.samples[:, -1]
    harmonic = torch.zeros(int(num_samples.max()) + 1, dtype=torch.float64)
    harmonic[1:] = torch.arange(1, len(harmonic), dtype=torch.float64).reciprocal().cumsum(0)
    sizes, errors = accepted.samples.diff(dim=1), accepted.errors.diff(dim=1)
    rate = errors / sizes.clamp_min(1)
    before = accepted.errors[:, :-1] - accepted.samples[:, :-1] * rate
    area = errors + before * harmonic[accepted.samples.long()].diff(dim=1)
    return area.sum(dim=1) / num_samples


def accuracy_at_coverage_draws(
    accepted: Accepted, coverages: tuple[float, ...]
) -> Float[Tensor, "draws coverages"]:
    """Return the accuracy of every draw on its most certain `ceil(coverage * samples)` samples."""
    num_samples = accepted.samples[0, -1]
    # The small step back keeps 0.9 * 10 at 9 samples where floating point says 9.000000000000002.
    shares = torch.tensor(coverages, dtype=torch.float64)
    kept = (shares * num_samples - 1e-9 * num_samples).ceil().clamp_min(1)
    return 1 - sums_at(kept, accepted.samples, accepted.errors) / kept


def _accepted(uncertainty: Array, probs: Array, labels: Array) -> Accepted:
    """Return the ranking of the data themselves, after checking scores and predictions."""
    checked, truth = as_predictions(probs, labels)
    scores = as_scores(uncertainty, name="uncertainty")
    if len(scores) != len(truth):
        raise ConfigError(
            f"uncertainty has {len(scores)} samples but there are {len(truth)} predictions; "
            "give one score for each."
        )
    return accepted_counts(whole_sample(len(truth)), rank(scores), correctness(checked, truth))


def aurc(uncertainty: Array, probs: Array, labels: Array) -> float:
    """Return the area under the risk-coverage curve; lower is better, the error rate is what chance gives."""
    return float(aurc_draws(_accepted(uncertainty, probs, labels)))


def accuracy_at_coverage(
    uncertainty: Array, probs: Array, labels: Array, *, coverage: float
) -> float:
    """Return the accuracy on the `coverage` share of the data with the smallest uncertainty."""
    share = as_share(coverage, name="coverage")
    return float(accuracy_at_coverage_draws(_accepted(uncertainty, probs, labels), (share,)))


def selective_metrics(
    uncertainty: Array,
    probs: Array,
    labels: Array,
    *,
    coverages: tuple[float, ...] = DEFAULT_COVERAGES,
) -> SelectiveMetrics:
    """Return AURC and the accuracy at each of `coverages`."""
    shares = tuple(as_share(coverage, name="coverage") for coverage in coverages)
    accepted = _accepted(uncertainty, probs, labels)
    return SelectiveMetrics(
        aurc=float(aurc_draws(accepted)),
        coverages=shares,
        accuracies=tuple(accuracy_at_coverage_draws(accepted, shares)[0].tolist()),
    )


def risk_coverage_curve(uncertainty: Array, probs: Array, labels: Array) -> RiskCoverageCurve:
    """Return the points of the risk-coverage curve, from the most certain group to the whole data."""
    accepted = _accepted(uncertainty, probs, labels)
    samples, errors = accepted.samples[0, 1:], accepted.errors[0, 1:]
    return RiskCoverageCurve(
        coverage=tuple((samples / samples[-1]).tolist()), risk=tuple((errors / samples).tolist())
    )
