"""How the figures are made: the numbers that can be chosen, and the words that say what was chosen."""

from dataclasses import dataclass

from lrformer.core import ConfigError
from lrformer.core.kinds import check_kinds
from lrformer.metrics.bootstrap import DEFAULT_LEVEL, DEFAULT_NUM_DRAWS
from lrformer.metrics.calibration import DEFAULT_NUM_BINS
from lrformer.metrics.inputs import as_num_bins, as_share
from lrformer.metrics.overconfidence import DEFAULT_THRESHOLD
from lrformer.metrics.selective import DEFAULT_COVERAGES


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The choices of an evaluation.

    Attributes:
        num_bins: of all calibration errors and of the reliability diagram.
        threshold: the probability above which a wrong prediction counts as overconfident.
        coverages: shares of the data, the most certain first, on which accuracy is measured.
        num_draws: of the bootstrap.
        level: of the intervals.
        seed: of the bootstrap.
    """

    num_bins: int = DEFAULT_NUM_BINS
    threshold: float = DEFAULT_THRESHOLD
    coverages: tuple[float, ...] = DEFAULT_COVERAGES
    num_draws: int = DEFAULT_NUM_DRAWS
    level: float = DEFAULT_LEVEL
    seed: int = 0

    def __post_init__(self) -> None:
        check_kinds(type(self), vars(self))
        as_num_bins(self.num_bins)
        as_share(self.threshold, name="threshold")
        for coverage in self.coverages:
            as_share(coverage, name="coverage")
        if len({f"{coverage:g}" for coverage in self.coverages}) < len(self.coverages):
            raise ConfigError(
                f"coverages ({', '.join(map(str, self.coverages))}) must differ in their first six digits."
            )
        if self.num_draws < 1:
            raise ConfigError(f"num_draws ({self.num_draws}) must be at least 1; 1000 is usual.")
        if not 0 < self.level < 1:
            raise ConfigError(
                f"level ({self.level}) must lie strictly between 0 and 1; 0.95 is usual."
            )

    def in_words(self, *, has_rule: bool = False, has_made: bool = False) -> dict[str, str]:
        """Return what a reader of the figures must know, one sentence for each.

        Args:
            has_rule: whether a threshold is kept with the model.
            has_made: whether unknown sets were made of the test images.
        """
        said = {
            "uncertainty": "larger means less certain, for every score",
            "detection": "the whole ID test set against the whole OOD set, OOD normalized with the ID statistics",
            "auroc": "OOD is the positive class; the same in both directions; ties count half",
            "aupr": "average precision; aupr_ood_positive finds OOD (the paper's), aupr_id_positive finds ID",
            "fpr95": "at 95% TPR; fpr95_ood_positive: share of ID flagged where 95% of OOD is caught; "
            "fpr95_id_positive: share of OOD let through where 95% of ID is kept",
            "ece": f"{self.num_bins} bins; equal_width and equal_mass on the largest probability, class_wise on "
            "every class's probability with equal-width bins, mean over the classes",
            "nll": "nats, probabilities floored at 1e-12",
            "brier": "squared distance to the one-hot label, summed over classes, 0 to 2",
            "aurc": "mean error rate over all coverages, the most certain first; equal scores count as one group",
            "accuracy_at": "accuracy on that share of the data, the most certain first",
            "overconfidence": f"rate: share of all samples that are wrong with a probability above "
            f"{self.threshold:g}; rate_when_wrong: the same share of the wrong ones; on an OOD set every "
            "prediction is wrong",
            "logit_norm": "mean L2 norm of the logits that give the probabilities",
            "classes": "the accuracy of a class is the share of its samples that is right, its recall; the interval is "
            f"Wilson's, level {self.level:g}, which knows how few samples a class has, also where all are right",
            "intervals": f"percentile bootstrap over samples, {self.num_draws} draws, level {self.level:g}, "
            f"seed {self.seed}; resampling makes calibration errors larger, so that on a small set their interval "
            "can lie above the value",
        }
        if has_rule:
            said["accepted_at_threshold"] = (
                "share of a set whose uncertainty is at most the threshold that is kept with the model, where auroc, aupr "
                "and fpr95 look at every threshold; fpr95 has one of its own, from the sets that it is measured on"
            )
        if has_made:
            said["made"] = (
                "these sets were made: of the test images (blocks shuffled, two of different classes mixed, inverted), or "
                "of uniform noise; that they are noticed does not say that real unknown images are"
            )
        return said
