"""What is measured of every draw of a bootstrap: from the counts of each sample, the metrics of all draws at once.

Whatever does not depend on the draws (losses, bins, ranks) is found once, when a measure is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.metrics.calibration import (
    ece_draws,
    ece_equal_mass_draws,
    gaps_of_confidence,
    gaps_of_every_class,
)
from lrformer.metrics.detection import (
    aupr_draws,
    auroc_draws,
    flagged_counts,
    fpr_draws,
    rank_both,
)
from lrformer.metrics.inputs import Array, as_num_bins, as_predictions, as_scores, as_share
from lrformer.metrics.overconfidence import overconfidence_draws
from lrformer.metrics.resampling import rank, weighted_mean
from lrformer.metrics.scoring import (
    balanced_accuracy_draws,
    brier_losses,
    correctness,
    log_losses,
)
from lrformer.metrics.selective import accepted_counts, accuracy_at_coverage_draws, aurc_draws

# What a metric that ranks by no score is filed under.
PROBABILITIES = ""

Draws = dict[tuple[str, str], Float[Tensor, " draws"]]  # by score and metric


@dataclass(frozen=True, kw_only=True, eq=False)
class Measure:
    """A set of metrics.

    Attributes:
        sizes: the number of samples of each set that is resampled.
        of: given the counts of each set, one row for each draw, every metric of every draw.
    """

    sizes: tuple[int, ...]
    of: Callable[..., Draws]


def classification_measure(
    probs: Array, labels: Array, *, num_bins: int, threshold: float
) -> Measure:
    """Return accuracy, NLL, Brier, the calibration errors and overconfidence."""
    checked, truth = as_predictions(probs, labels)
    bins, bound = as_num_bins(num_bins), as_share(threshold, name="threshold")
    correct = correctness(checked, truth)
    confidence = checked.amax(dim=1)
    means = {
        "accuracy": correct,
        "nll": log_losses(checked, truth),
        "brier": brier_losses(checked, truth),
    }
    # Once for all draws: to place them takes many times as long as to measure a block of draws.
    of_confidence = gaps_of_confidence(confidence, correct, num_bins=bins)
    of_every_class = gaps_of_every_class(checked, truth, num_bins=bins)

    def measure(drawn: Tensor) -> Draws:
        counts = drawn.double()
        wrong_figures = overconfidence_draws(counts, confidence, 1 - correct, threshold=bound)
        draws = {
            **{name: weighted_mean(counts, values) for name, values in means.items()},
            "balanced_accuracy": balanced_accuracy_draws(counts, correct, truth),
            "ece_equal_width": ece_draws(counts, of_confidence),
            "ece_equal_mass": ece_equal_mass_draws(counts, confidence, correct, num_bins=bins),
            "ece_class_wise": ece_draws(counts, of_every_class),
            **{f"overconfidence_{name}": draws for name, draws in wrong_figures.items()},
        }
        return {(PROBABILITIES, name): values for name, values in draws.items()}

    return Measure(sizes=(len(truth),), of=measure)


def mean_measure(values: Mapping[str, Array]) -> Measure:
    """Return the mean of each of `values`, one for each sample."""
    columns = {name: as_scores(column, name=name) for name, column in values.items()}
    sizes = {len(column) for column in columns.values()}
    if len(sizes) > 1:
        raise ConfigError(
            f"the values are of sets of different sizes ({sorted(sizes)}); give one value under each "
            "name for each sample."
        )

    def measure(counts: Tensor) -> Draws:
        return {
            (PROBABILITIES, name): weighted_mean(counts, column) for name, column in columns.items()
        }

    return Measure(sizes=tuple(sizes), of=measure)


def selective_measure(
    scores: Mapping[str, Array], probs: Array, labels: Array, *, coverages: tuple[float, ...]
) -> Measure:
    """Return AURC and the accuracy at each coverage, of several uncertainty scores."""
    checked, truth = as_predictions(probs, labels)
    rankings = {}
    for name, values in scores.items():
        uncertainty = as_scores(values, name=name)
        _check_same_length(uncertainty, truth, name=name)
        rankings[name] = rank(uncertainty)
    shares = tuple(as_share(coverage, name="coverage") for coverage in coverages)
    correct = correctness(checked, truth)

    def measure(counts: Tensor) -> Draws:
        draws: Draws = {}
        for name, ranking in rankings.items():
            accepted = accepted_counts(counts, ranking, correct)
            draws[name, "aurc"] = aurc_draws(accepted)
            accuracies = accuracy_at_coverage_draws(accepted, shares).unbind(dim=1)
            for share, accuracy in zip(shares, accuracies, strict=True):
                draws[name, f"accuracy_at_{share:g}"] = accuracy
        return draws

    return Measure(sizes=(len(truth),), of=measure)


def detection_measure(id_scores: Mapping[str, Array], ood_scores: Mapping[str, Array]) -> Measure:
    """Return AUROC, AUPR and FPR at 95% TPR in both directions, of several scores; both sets are resampled."""
    if id_scores.keys() != ood_scores.keys():
        raise ConfigError(
            f"id_scores has the scores {', '.join(id_scores) or 'none'} and ood_scores {', '.join(ood_scores) or 'none'}; both "
            "need the same."
        )
    rankings, sizes = {}, set()
    for name in id_scores:
        inside = as_scores(id_scores[name], name=f"id_{name}")
        outside = as_scores(ood_scores[name], name=f"ood_{name}")
        rankings[name] = rank_both(inside, outside)
        sizes.add((len(inside), len(outside)))
    if len(sizes) > 1:
        raise ConfigError(
            f"the scores are of sets of different sizes ({sorted(sizes)}); give one value of each "
            "score for each sample."
        )

    def measure(id_counts: Tensor, ood_counts: Tensor) -> Draws:
        draws: Draws = {}
        for name, ranking in rankings.items():
            flagged = flagged_counts(id_counts, ood_counts, ranking)
            draws[name, "auroc"] = auroc_draws(flagged)
            for positive in ("ood", "id"):
                draws[name, f"aupr_{positive}_positive"] = aupr_draws(flagged, positive=positive)
            for positive in ("ood", "id"):
                draws[name, f"fpr95_{positive}_positive"] = fpr_draws(
                    flagged, tpr=0.95, positive=positive
                )
        return draws

    return Measure(sizes=sizes.pop() if sizes else (), of=measure)


def _check_same_length(values: Tensor, labels: Tensor, *, name: str) -> None:
    """Raise if there is not one row of `values` for each label."""
    if len(values) != len(labels):
        raise ConfigError(
            f"{name} has {len(values)} samples but there are {len(labels)} labels; give one for each."
        )
