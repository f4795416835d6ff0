"""How each class of a test set fares: its samples, the share that is right, and what the others were taken for."""

from collections import Counter
from dataclasses import dataclass, field

from lrformer.evaluation.predictions import Predictions
from lrformer.metrics import confusion_matrix, wilson_interval


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """One row of the confusion matrix, with the accuracy of its class.

    Attributes:
        name: of the class; its number stands behind it where another has the same name.
        count: samples of the class in the test set.
        accuracy: share of these that is right, the recall of the class; None where there are none.
        low: end of Wilson's interval of the accuracy.
        high: its other end.
        taken_for: how many were taken for which other class, by name, the most first.
    """

    name: str
    count: int
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    taken_for: dict[str, int] = field(default_factory=dict)

    @property
    def num_right(self) -> int:
        """Return how many samples of the class are right: the diagonal of the matrix."""
        return self.count - sum(self.taken_for.values())


def class_figures(predictions: Predictions, *, level: float) -> tuple[ClassFigures, ...]:
    """Return the figures of every class, in the order of the model's."""
    assert predictions.labels is not None
    names = _distinct_names(predictions)
    found = []
    for label, row in enumerate(confusion_matrix(predictions.probs, predictions.labels)):
        others = [(names[int(k)], int(row[k])) for k in row.nonzero()[:, 0] if int(k) != label]
        taken_for = dict(sorted(others, key=lambda other: -other[1]))
        count = int(row.sum())
        if count == 0:
            found.append(ClassFigures(name=names[label], count=0))
            continue
        share = wilson_interval(int(row[label]), count, level=level)
        found.append(
            ClassFigures(
                name=names[label],
                count=count,
                accuracy=share.value,
                low=share.low,
                high=share.high,
                taken_for=taken_for,
            )
        )
    return tuple(found)


def _distinct_names(predictions: Predictions) -> list[str]:
    """Return what the classes are called; ImageNet has two that are called crane."""
    names = [predictions.class_name(label) for label in range(predictions.probs.shape[1])]
    times = Counter(names)
    return [name if times[name] == 1 else f"{name} ({label})" for label, name in enumerate(names)]


def worst_classes(classes: tuple[ClassFigures, ...], *, most: int) -> list[ClassFigures]:
    """Return at most so many classes that are not always right, the least accurate first."""
    wrong = [entry for entry in classes if entry.taken_for]
    return sorted(wrong, key=lambda entry: (entry.accuracy, -entry.count))[:most]


def confusions(classes: tuple[ClassFigures, ...], *, most: int) -> list[tuple[str, str, int]]:
    """Return what was taken for what how often, the most frequent first."""
    found = [
        (entry.name, other, number)
        for entry in classes
        for other, number in entry.taken_for.items()
    ]
    return sorted(found, key=lambda confusion: -confusion[2])[:most]
