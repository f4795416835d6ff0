"""What every metric and score is called, how its values are written, and what it means, in plain words."""

import math
from dataclasses import dataclass

# Everything else that is measured is better when it is smaller.
HIGHER_IS_BETTER = ("accuracy", "balanced_accuracy", "auroc", "aupr")
# The share of a set that the run answers; more is better of the known, and less of the unknown.
ACCEPTED = "accepted_at_threshold"
# Figures that describe and do not judge: a model is not better for having more or less of them.
DESCRIPTIVE = ("logit_norm", "overconfidence_mean_confidence", ACCEPTED)


def direction(name: str) -> int:
    """Return 1 for a metric of which more is better, -1 where less is, 0 where neither is."""
    if name in DESCRIPTIVE:
        return 0
    return 1 if name.startswith(HIGHER_IS_BETTER) else -1


@dataclass(frozen=True, kw_only=True)
class MetricWords:
    """The name of a metric in a table, one sentence about it, and whether its values are written as per cent."""

    title: str
    meaning: str
    is_percent: bool = False


WORDS = {
    "accuracy": MetricWords(title="Accuracy", meaning="how often the most probable class is right", is_percent=True),
    "balanced_accuracy": MetricWords(title="Balanced accuracy", meaning="mean over the classes of how often each is right: all count alike", is_percent=True),
    "nll": MetricWords(title="NLL", meaning="how surprised the model is by the truth, in nats; punishes sure mistakes hardest"),
    "brier": MetricWords(title="Brier", meaning="squared distance between the probabilities and the truth, 0 to 2"),
    "ece_equal_width": MetricWords(title="ECE", meaning="how far confidence is from accuracy, over bins of equal width"),
    "ece_equal_mass": MetricWords(title="ECE, equal mass", meaning="the same over bins that hold equally many samples"),
    "ece_class_wise": MetricWords(title="ECE, class-wise", meaning="the same for the probability of every class, averaged"),
    "overconfidence_rate": MetricWords(title="Overconfident", meaning="share of all samples: wrong, with a probability above 0.9 or the chosen limit", is_percent=True),
    "overconfidence_rate_when_wrong": MetricWords(title="Overconfident when wrong", meaning="share of the wrong ones: with a probability above 0.9 or the chosen limit", is_percent=True),
    "overconfidence_mean_confidence_when_wrong": MetricWords(title="Confidence when wrong", meaning="mean largest probability of the wrong ones", is_percent=True),
    "overconfidence_mean_confidence": MetricWords(title="Mean confidence", meaning="mean largest probability of all samples", is_percent=True),
    "logit_norm": MetricWords(title="Norm of the logits", meaning="mean length of the logit vector, the lever of overconfidence"),
    "accepted_at_threshold": MetricWords(title="Accepted", meaning="share that is answered at the kept threshold; high is good of the known, low of the unknown", is_percent=True),
    "aurc": MetricWords(title="AURC", meaning="mean error rate as ever more uncertain samples are answered"),
    "auroc": MetricWords(title="AUROC", meaning="how often an unknown image is scored as less certain than a known one"),
    "aupr_ood_positive": MetricWords(title="AUPR (OOD+)", meaning="average precision of finding the unknown"),
    "aupr_id_positive": MetricWords(title="AUPR (ID+)", meaning="average precision of finding the known"),
    "fpr95_ood_positive": MetricWords(title="FPR95 (OOD+)", meaning="known images flagged where 95% of the unknown are caught", is_percent=True),
    "fpr95_id_positive": MetricWords(title="FPR95 (ID+)", meaning="unknown images let through where 95% of the known are kept", is_percent=True),
}  # fmt: skip

SCORE_WORDS = {
    "msp": "1 minus the largest probability",
    "entropy": "spread of the probabilities over the classes",
    "energy": "how small all logits are together",
    "dempster_shafer": "lack of evidence: classes / (classes + sum of exp(logits))",
    "variance": "variance of the posterior, or between samples or members",
    "mutual_information": "disagreement between samples or members",
    "kernel_distance": "distance to the nearest class in feature space",
}

# Of metrics that can be above 1.
LARGEST = {"nll": math.inf, "logit_norm": math.inf, "brier": 2.0}
ARROWS = {1: "↑", -1: "↓", 0: ""}


def words_of(name: str) -> MetricWords:
    """Return the words for a metric; accuracy at a coverage is made from its number."""
    if name.startswith("accuracy_at_"):
        share = float(name.removeprefix("accuracy_at_"))
        return MetricWords(
            title=f"Accuracy at {share:.0%}",
            meaning=f"accuracy on the {share:.0%} of which the model is most certain",
            is_percent=True,
        )
    return WORDS.get(name, MetricWords(title=name, meaning=""))


def title_with_arrow(name: str) -> str:
    """Return the title of a metric with an arrow to its better side."""
    return f"{words_of(name).title}\u00a0{ARROWS[direction(name)]}".strip("\u00a0")


def write_value(name: str, value: float) -> str:
    """Return a value as a person reads it: per cent with two decimals, else four significant digits."""
    if words_of(name).is_percent:
        return f"{100 * value:.2f}%"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def write_interval(name: str, low: float | None, high: float | None) -> str:
    """Return an interval as a person reads it, or nothing where there is none."""
    if low is None or high is None:
        return ""
    # An interval over two or three seeds can be wider than the metric.
    low, high = max(low, 0.0), min(high, LARGEST.get(name, 1.0))
    if words_of(name).is_percent:
        return f"{100 * low:.2f}\u2013{100 * high:.2f}%"
    return f"{low:.4f}\u2013{high:.4f}" if abs(high) < 10 else f"{low:.4g}\u2013{high:.4g}"
