"""Expected calibration error in its three usual forms, and the bins of the reliability diagram."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.metrics.inputs import Array, as_num_bins, as_predictions
from lrformer.metrics.resampling import cumulate, rank, sums_at, whole_sample
from lrformer.metrics.scoring import correctness

DEFAULT_NUM_BINS = 15
BINNINGS = ("equal_width", "equal_mass")
# Dense (samples, classes x bins) gaps are built for so many classes at a time: 1,000 of them would not fit.
CLASSES_AT_A_TIME = 32


@dataclass(frozen=True, kw_only=True)
class CalibrationMetrics:
    """The three calibration errors, lower is better, and the number of bins that all of them used."""

    num_bins: int
    ece_equal_width: float
    ece_equal_mass: float
    ece_class_wise: float


@dataclass(frozen=True, kw_only=True)
class ReliabilityBins:
    """What a reliability diagram draws: for every bin its range, share, mean confidence and accuracy.

    An empty bin has None for confidence and accuracy.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]


def equal_width_bins(values: Float[Tensor, "*shape"], num_bins: int) -> Int[Tensor, "*shape"]:
    """Return the bin of every value in [0, 1]; bins are closed on the left, and 1 is in the last."""
    edges = torch.linspace(0, 1, num_bins + 1, dtype=values.dtype)
    return (torch.bucketize(values, edges, right=True) - 1).clamp(0, num_bins - 1)


def ece_equal_width_draws(
    counts: Float[Tensor, "draws b"],
    probs: Float[Tensor, "b c"],
    labels: Int[Tensor, " b"],
    *,
    num_bins: int,
) -> Float[Tensor, " draws"]:
    """Return the equal-width calibration error of every draw."""
    confidence = probs.amax(dim=1)
    gaps = (confidence - correctness(probs, labels))[:, None]
    return _binned_gap(counts, gaps, equal_width_bins(confidence, num_bins)[:, None], num_bins)


def ece_class_wise_draws(
    counts: Float[Tensor, "draws b"],
    probs: Float[Tensor, "b c"],
    labels: Int[Tensor, " b"],
    *,
    num_bins: int,
) -> Float[Tensor, " draws"]:
    """Return the class-wise calibration error of every draw: equal-width bins, mean over the classes."""
    gaps = probs - torch.nn.functional.one_hot(labels, probs.shape[1])
    bins = equal_width_bins(probs, num_bins)
    total = torch.zeros(len(counts), dtype=torch.float64)
    for part, where in zip(
        gaps.split(CLASSES_AT_A_TIME, dim=1), bins.split(CLASSES_AT_A_TIME, dim=1), strict=True
    ):
        total += _binned_gap(counts, part, where, num_bins)
    return total / probs.shape[1]


def ece_equal_mass_draws(
    counts: Float[Tensor, "draws b"],
    probs: Float[Tensor, "b c"],
    labels: Int[Tensor, " b"],
    *,
    num_bins: int,
) -> Float[Tensor, " draws"]:
    """Return the equal-mass calibration error of every draw, whose bins are cut anew in each."""
    confidence = probs.amax(dim=1)
    ranking = rank(confidence)
    weights = counts.index_select(1, ranking.order).double()
    gaps = (confidence - correctness(probs, labels))[ranking.order]
    num_samples = len(probs)
    small, larger = divmod(num_samples, num_bins)
    sizes = torch.full((num_bins,), small, dtype=torch.float64)
    sizes[:larger] += 1
    sums = sums_at(
        sizes[sizes > 0].cumsum(0),
        cumulate(weights, ranking.ends),
        cumulate(weights * gaps, ranking.ends),
    )
    return torch.nn.functional.pad(sums, (1, 0)).diff(dim=1).abs().sum(dim=1) / num_samples


def _binned_gap(
    counts: Float[Tensor, "draws b"],
    gaps: Float[Tensor, "b k"],
    bins: Int[Tensor, "b k"],
    num_bins: int,
) -> Float[Tensor, " draws"]:
    """Return the sum over columns and bins of the absolute gap that falls into each, over the size of a draw."""
    num_samples, num_columns = gaps.shape
    placed = torch.zeros(num_samples, num_columns, num_bins, dtype=torch.float64)
    placed.scatter_(2, bins[:, :, None], gaps[:, :, None])
    placed = placed.flatten(1)
    # Most bins of most classes are empty: their columns would only cost time.
    placed = placed[:, placed.ne(0).any(dim=0)]
    return (counts @ placed).abs().sum(dim=1) / counts.sum(dim=1)


def expected_calibration_error(
    probs: Array,
    labels: Array,
    *,
    num_bins: int = DEFAULT_NUM_BINS,
    binning: str = "equal_width",
) -> float:
    """Return the mean gap between confidence and accuracy over bins of the largest probability.

    Args:
        num_bins: state it with the figure, which depends on it.
        binning: `equal_width` cuts [0, 1] evenly; `equal_mass` puts as many samples into every bin.
    """
    if binning not in BINNINGS:
        raise ConfigError(
            f"unknown binning '{binning}'.{did_you_mean(binning, BINNINGS)} "
            f"Known: {', '.join(BINNINGS)}."
        )
    checked, truth = as_predictions(probs, labels)
    error = ece_equal_width_draws if binning == "equal_width" else ece_equal_mass_draws
    return float(error(whole_sample(len(truth)), checked, truth, num_bins=as_num_bins(num_bins)))


def class_wise_calibration_error(
    probs: Array, labels: Array, *, num_bins: int = DEFAULT_NUM_BINS
) -> float:
    """Return the calibration error of each class's probability (equal-width bins), mean over the classes."""
    checked, truth = as_predictions(probs, labels)
    return float(
        ece_class_wise_draws(
            whole_sample(len(truth)), checked, truth, num_bins=as_num_bins(num_bins)
        )
    )


def calibration_metrics(
    probs: Array, labels: Array, *, num_bins: int = DEFAULT_NUM_BINS
) -> CalibrationMetrics:
    """Return the calibration error with equal-width bins, equal-mass bins and class by class."""
    checked, truth = as_predictions(probs, labels)
    counts, bins = whole_sample(len(truth)), as_num_bins(num_bins)
    return CalibrationMetrics(
        num_bins=bins,
        ece_equal_width=float(ece_equal_width_draws(counts, checked, truth, num_bins=bins)),
        ece_equal_mass=float(ece_equal_mass_draws(counts, checked, truth, num_bins=bins)),
        ece_class_wise=float(ece_class_wise_draws(counts, checked, truth, num_bins=bins)),
    )


def reliability_bins(
    probs: Array, labels: Array, *, num_bins: int = DEFAULT_NUM_BINS
) -> ReliabilityBins:
    """Return the equal-width bins of the reliability diagram, empty ones included."""
    checked, truth = as_predictions(probs, labels)
    confidence, correct = checked.amax(dim=1), correctness(checked, truth)
    bins = equal_width_bins(confidence, as_num_bins(num_bins))
    counts = bins.bincount(minlength=num_bins)

    def bin_means(values: Tensor) -> tuple[float | None, ...]:
        sums = bins.bincount(weights=values, minlength=num_bins)
        return tuple(
            float(total / count) if count else None
            for total, count in zip(sums, counts, strict=True)
        )

    return ReliabilityBins(
        edges=tuple(torch.linspace(0, 1, num_bins + 1, dtype=torch.float64).tolist()),
        counts=tuple(counts.tolist()),
        confidence=bin_means(confidence),
        accuracy=bin_means(correct),
    )
