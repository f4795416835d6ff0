"""What the figures say, in sentences that are made from the measured values and from nothing else."""

from html import escape

from lrformer.evaluation import Metric, Scores
from lrformer.evaluation.sentences import operating_point, worst
from lrformer.evaluation.words import words_of, write_interval, write_value

# A gap between confidence and accuracy smaller than this share of itself is not worth a verdict.
SMALL_GAP = 0.01


def findings(scores: Scores) -> list[str]:
    """Return a few sentences for somebody who reads no table, as HTML."""
    said = [_accuracy(scores), _calibration(scores)]
    said += [escape(sentence) for sentence in (worst(scores),) if sentence is not None]
    said += [_unknown(scores, entry.name) for entry in scores.of_role("ood")]
    said += [escape(sentence) for sentence in (operating_point(scores),) if sentence is not None]
    for entry in scores.of_role("mean"):
        value = write_value("accuracy", scores("accuracy", dataset=entry.name))
        number = len(scores.of_role("corrupted"))
        said.append(
            f"Over {number} corrupted versions of the test set it is right {value} of the time."
        )
    return said


def caution(scores: Scores) -> str | None:
    """Return a warning, in plain text, where the run has learned from what it is measured on."""
    if scores.test_note is None:
        return None
    return f"{scores.test_set} is not new to the run: {scores.test_note}. Figures on new data can be worse."


def tiles(scores: Scores) -> str:
    """Return the first figures a reader looks for, as small cards."""
    test = scores.select(dataset=scores.test_set)
    wanted = [(test[name], "") for name in ("accuracy", "ece_equal_width", "nll") if name in test]
    for entry in scores.of_role("ood"):
        metrics = scores.select(dataset=entry.name, score=scores.default_score)
        wanted.append((metrics["auroc"], f", {entry.name}"))
    return f'<div class="tiles">{"".join(_tile(metric, where) for metric, where in wanted)}</div>'


def _tile(metric: Metric, where: str) -> str:
    return (
        f'<div class="tile"><span>{words_of(metric.name).title}{escape(where)}</span>'
        f"<b>{write_value(metric.name, metric.value)}</b>"
        f"<small>{write_interval(metric.name, metric.low, metric.high)}</small></div>"
    )


def _accuracy(scores: Scores) -> str:
    test = scores.of_role("id")[0]
    metric = scores.select(dataset=test.name)["accuracy"]
    interval = write_interval("accuracy", metric.low, metric.high)
    return (
        f"On the {test.num_samples:,} samples of {escape(scores.noted_test_set)} the model is right "
        f"<strong>{write_value('accuracy', metric.value)}</strong> of the time ({interval})."
    )


def _calibration(scores: Scores) -> str:
    right, sure = scores("accuracy"), scores("overconfidence_mean_confidence")
    gap = sure - right
    if abs(gap) < SMALL_GAP:
        verdict = "about as sure as it is right"
    else:
        verdict = (
            f"{'surer' if gap > 0 else 'less sure'} than it is right by {100 * abs(gap):.1f} points"
        )
    rate = write_value("overconfidence_rate", scores("overconfidence_rate"))
    return (
        f"Its mean confidence is {write_value('overconfidence_mean_confidence', sure)}: on average it is "
        f"<strong>{verdict}</strong> (ECE {scores('ece_equal_width'):.4f}). {rate} of its answers are "
        f"wrong with a probability above {scores.config.threshold:g}."
    )


def _unknown(scores: Scores, name: str) -> str:
    detected = scores("auroc", dataset=name)
    flagged = scores("fpr95_id_positive", dataset=name)
    return (
        f"An image of <strong>{escape(name)}</strong>, a set taken as unknown, looks less certain "
        f"than a test image <strong>{detected:.1%}</strong> of the time. With a threshold that keeps "
        f"95% of these known images, {flagged:.1%} of these unknown ones pass as known."
    )
