"""Class by class: every class and the whole confusion matrix where they are few, the worst of them where they are many."""

from html import escape

from lrformer.evaluation import ClassFigures, Scores
from lrformer.evaluation.classes import confusions, worst_classes
from lrformer.evaluation.words import write_interval, write_value
from lrformer.reports.tables import table

# A matrix of more would be a wall of zeros.
MOST_SHOWN = 20
NUM_WORST = 10
NUM_CONFUSIONS = 10
NUM_NAMED = 2


def class_section(scores: Scores) -> str:
    """Return the content of the section about classes."""
    classes = scores.classes
    is_few = len(classes) <= MOST_SHOWN
    if is_few:
        said = f"{_class_table(classes)}<h3>What was taken for what</h3>{_matrix(classes)}"
    else:
        said = _worst(classes)
    return (
        "<p>How often each class is right, of its own samples in the test set; below each value is Wilson's interval, "
        f"which is wide where the samples are few.</p>{_absent(classes)}{said}"
    )


def _absent(classes: tuple[ClassFigures, ...]) -> str:
    """Return which classes the test set does not have, if there are any."""
    absent = [escape(entry.name) for entry in classes if entry.count == 0]
    if not absent:
        return ""
    more = len(absent) - MOST_SHOWN
    named = ", ".join(absent[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"<p>Without a sample in the test set: {named}.</p>"


def _class_table(classes: tuple[ClassFigures, ...] | list[ClassFigures]) -> str:
    rows = [
        (
            f"<strong>{escape(entry.name)}</strong>",
            f"{entry.count:,}",
            _accuracy(entry),
            ", ".join(
                f"{escape(other)} ({number:,})"
                for other, number in list(entry.taken_for.items())[:NUM_NAMED]
            ),
        )
        for entry in classes
    ]
    header = ("class", "samples", "accuracy", "taken for")
    return f'<div class="narrow">{table(header, rows)}</div>'


def _accuracy(entry: ClassFigures) -> str:
    if entry.accuracy is None:
        return "-"
    interval = write_interval("accuracy", entry.low, entry.high)
    return f"<span>{write_value('accuracy', entry.accuracy)}</span><small>{interval}</small>"


def _matrix(classes: tuple[ClassFigures, ...]) -> str:
    """Return the confusion matrix; where nothing was confused the cell is empty, so that the eye finds the others."""
    rows = []
    for entry in classes:
        cells = [
            f"<strong>{entry.num_right:,}</strong>" if other is entry else _number(entry, other)
            for other in classes
        ]
        rows.append((f"<strong>{escape(entry.name)}</strong>", *cells))
    header = ("is, said", *(escape(entry.name) for entry in classes))
    return (
        f"<p>A row is what the samples are, a column what the model said.</p>{table(header, rows)}"
    )


def _number(entry: ClassFigures, other: ClassFigures) -> str:
    number = entry.taken_for.get(other.name, 0)
    return f"{number:,}" if number else ""


def _worst(classes: tuple[ClassFigures, ...]) -> str:
    """Return the classes that are right least often, and what is confused most often."""
    right = sum(entry.count > 0 and not entry.taken_for for entry in classes)
    said = f"<p>{len(classes):,} classes, of which {right:,} are always right. All are in <code>metrics.json</code>.</p>"
    found = worst_classes(classes, most=NUM_WORST)
    if not found:
        return said
    rows = [
        (f"{escape(name)}", f"{escape(other)}", f"{number:,}")
        for name, other, number in confusions(classes, most=NUM_CONFUSIONS)
    ]
    often = table(("is", "was taken for", "times"), rows, numbers_from=2)
    return (
        f"{said}<h3>Right least often</h3>{_class_table(found)}"
        f'<h3>Confused most often</h3><div class="narrow">{often}</div>'
    )
