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


@dataclass(frozen=True, kw_only=True, eq=False)
class BinnedGaps:
    """Gaps between confidence and truth, sorted into bins once for any number of draws.

    Probabilities sum to one, so that no sample has more than `num_bins` classes outside the first bin: the gaps there
    are kept sparse, as (samples, classes x bins) would not fit.

    Attributes:
        first: the gaps in the first bin of every column; 0 where the value is in another.
        others: the gaps in the other bins, one row for each bin of a column that holds any.
    """

    first: Float[Tensor, "b k"]
    others: Float[Tensor, "cells b"]


def bin_edges(num_bins: int) -> Float[Tensor, " edges"]:
    """Return the edges of bins that cut [0, 1] evenly."""
    # Not linspace, which multiplies a rounded step: its edge at 3/10 lies above .3.
    return torch.arange(num_bins + 1, dtype=torch.float64) / num_bins


def equal_width_bins(values: Float[Tensor, "*shape"], num_bins: int) -> Int[Tensor, "*shape"]:
    """Return the bin of every value in [0, 1]; bins are closed on the left, and 1 is in the last."""
    edges = bin_edges(num_bins).to(values.dtype)
    return (torch.bucketize(values, edges, right=True) - 1).clamp(0, num_bins - 1)


def gaps_of_confidence(
    confidence: Float[Tensor, " b"], correct: Float[Tensor, " b"], *, num_bins: int
) -> BinnedGaps:
    """Return the gaps whose `ece_draws` are the equal-width calibration error."""
    return _place((confidence - correct)[:, None], confidence[:, None], num_bins)


def gaps_of_every_class(
    probs: Float[Tensor, "b c"], labels: Int[Tensor, " b"], *, num_bins: int
) -> BinnedGaps:
    """Return the gaps whose `ece_draws` are the class-wise calibration error, in equal-width bins."""
    gaps = probs.clone()
    gaps[torch.arange(len(labels)), labels] -= 1
    return _place(gaps, probs, num_bins)


def ece_draws(counts: Float[Tensor, "draws b"], gaps: BinnedGaps) -> Float[Tensor, " draws"]:
    """Return the calibration error of every draw, mean over the columns of `gaps`."""
    first = (counts @ gaps.first).abs().sum(dim=1)
    others = torch.sparse.mm(gaps.others, counts.T).abs().sum(dim=0)
    return (first + others) / counts.sum(dim=1) / gaps.first.shape[1]


def ece_equal_mass_draws(
    counts: Float[Tensor, "draws b"],
    confidence: Float[Tensor, " b"],
    correct: Float[Tensor, " b"],
    *,
    num_bins: int,
) -> Float[Tensor, " draws"]:
    """Return the equal-mass calibration error of every draw, whose bins are cut anew in each."""
    ranking = rank(confidence)
    weights = counts.index_select(1, ranking.order).double()
    gaps = (confidence - correct)[ranking.order]
    num_samples = len(confidence)
    small, larger = divmod(num_samples, num_bins)
    sizes = torch.full((num_bins,), small, dtype=torch.float64)
    sizes[:larger] += 1
    sums = sums_at(
        sizes[sizes > 0].cumsum(0),
        cumulate(weights, ranking.ends),
        cumulate(weights * gaps, ranking.ends),
    )
    return torch.nn.functional.pad(sums, (1, 0)).diff(dim=1).abs().sum(dim=1) / num_samples


def _place(gaps: Float[Tensor, "b k"], values: Float[Tensor, "b k"], num_bins: int) -> BinnedGaps:
    """Return each gap in the bin that its value falls into."""
    bins = equal_width_bins(values, num_bins)
    samples, columns = bins.nonzero(as_tuple=True)
    places = columns * num_bins + bins[samples, columns]
    cells, rows = places.unique(return_inverse=True)
    # Not the argument check_invariants, beside which torch 2.11 still warns that nothing is checked.
    with torch.sparse.check_sparse_tensor_invariants():
        others = torch.sparse_coo_tensor(
            torch.stack([rows, samples]), gaps[samples, columns], (len(cells), len(values))
        )
    return BinnedGaps(first=gaps.masked_fill(bins > 0, 0), others=others.coalesce())


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
    confidence, correct = checked.amax(dim=1), correctness(checked, truth)
    counts, bins = whole_sample(len(truth)), as_num_bins(num_bins)
    if binning == "equal_width":
        return float(ece_draws(counts, gaps_of_confidence(confidence, correct, num_bins=bins)))
    return float(ece_equal_mass_draws(counts, confidence, correct, num_bins=bins))


def class_wise_calibration_error(
    probs: Array, labels: Array, *, num_bins: int = DEFAULT_NUM_BINS
) -> float:
    """Return the calibration error of each class's probability (equal-width bins), mean over the classes."""
    checked, truth = as_predictions(probs, labels)
    gaps = gaps_of_every_class(checked, truth, num_bins=as_num_bins(num_bins))
    return float(ece_draws(whole_sample(len(truth)), gaps))


def calibration_metrics(
    probs: Array, labels: Array, *, num_bins: int = DEFAULT_NUM_BINS
) -> CalibrationMetrics:
    """Return the calibration error with equal-width bins, equal-mass bins and class by class."""
    checked, truth = as_predictions(probs, labels)
    confidence, correct = checked.amax(dim=1), correctness(checked, truth)
    counts, bins = whole_sample(len(truth)), as_num_bins(num_bins)
    one_by_one = gaps_of_every_class(checked, truth, num_bins=bins)
    return CalibrationMetrics(
        num_bins=bins,
        ece_equal_width=float(
            ece_draws(counts, gaps_of_confidence(confidence, correct, num_bins=bins))
        ),
        ece_equal_mass=float(ece_equal_mass_draws(counts, confidence, correct, num_bins=bins)),
        ece_class_wise=float(ece_draws(counts, one_by_one)),
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
        edges=tuple(bin_edges(num_bins).tolist()),
        counts=tuple(counts.tolist()),
        confidence=bin_means(confidence),
        accuracy=bin_means(correct),
    )
