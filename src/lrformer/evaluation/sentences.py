"""What a person should be told of an evaluation in one line each, as plain text."""

from typing import TYPE_CHECKING

from lrformer.evaluation.classes import worst_classes
from lrformer.evaluation.words import ACCEPTED

if TYPE_CHECKING:
    from lrformer.evaluation.scores import Scores

NUM_WORST = 3
# Of accuracies, that is worth a word.
LEAST_DIFFERENCE = 0.005


def operating_point(scores: "Scores") -> str | None:
    """Return how much of every set is answered at the kept threshold; None where there is no threshold."""
    if scores.rule is None:
        return None
    found: dict[bool, list[str]] = {False: [], True: []}
    for entry in scores.sets:
        metric = scores.select(dataset=entry.name, score=scores.rule.score).get(ACCEPTED)
        if metric is not None and entry.role != "corrupted":
            found[entry.role == "made"].append(f"{metric.value:.1%} of {entry.name}")
    owner = "the run's" if "run" in scores.about else "the kept"
    said = (
        f"At {owner} threshold ({scores.rule.score} <= {scores.rule.threshold:.4g}): "
        f"{', '.join(found[False])} are accepted"
    )
    return (
        f"{said}; of images that were made, {', '.join(found[True])}."
        if found[True]
        else f"{said}."
    )


def worst(scores: "Scores") -> str | None:
    """Return the classes that are wrong most often; None where nothing is known of classes."""
    if not scores.classes:
        return None
    # Of two classes one is worse.
    found = worst_classes(scores.classes, most=min(NUM_WORST, len(scores.classes) - 1))
    if not found:
        return f"Every class of {scores.test_set} is always right."
    said = ", ".join(f"{entry.name} ({entry.accuracy:.1%} of {entry.count:,})" for entry in found)
    return f"Classes right least often: {said}.{_balanced(scores)}"


def _balanced(scores: "Scores") -> str:
    """Return the mean over the classes where it is another figure than the accuracy, as with classes of different sizes."""
    found = scores.select(dataset=scores.test_set)
    if "balanced_accuracy" not in found:
        return ""  # an evaluation from before it was measured
    plain, balanced = found["accuracy"].value, found["balanced_accuracy"].value
    if abs(plain - balanced) < LEAST_DIFFERENCE:
        return ""
    return f" With every class alike the accuracy is {balanced:.1%}."
