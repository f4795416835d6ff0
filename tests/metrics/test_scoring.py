import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss

from lrformer.core import ConfigError, from_record, to_record
from lrformer.metrics import (
    ScoringMetrics,
    accuracy,
    balanced_accuracy,
    brier_score,
    negative_log_likelihood,
    scoring_metrics,
)


def test_accuracy_nll_and_brier_equal_sklearn_and_a_slow_loop(random_predictions):
    probs, labels = random_predictions(211, 5)
    result = scoring_metrics(probs, labels)
    slow_brier = 0.0
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        slow_brier += sum((p - (k == label)) ** 2 for k, p in enumerate(row)) / len(labels)
    assert result.accuracy == pytest.approx(accuracy_score(labels, probs.argmax(1)), abs=1e-14)
    assert result.nll == pytest.approx(log_loss(labels, probs), abs=1e-12)
    assert result.brier == pytest.approx(slow_brier, abs=1e-12)
    assert (result.num_samples, result.num_classes) == (211, 5)
    assert accuracy(probs, labels) == result.accuracy
    assert negative_log_likelihood(probs, labels) == result.nll
    assert brier_score(probs, labels) == result.brier


def test_balanced_accuracy_equals_sklearn_also_where_classes_are_missing(random_predictions):
    probs, labels = random_predictions(211, 6)
    for kept in (labels >= 0, (labels != 5) & (labels != 2)):
        p, y = probs[kept], labels[kept]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # answers of classes that no sample has
            theirs = balanced_accuracy_score(y, p.argmax(1))
        assert balanced_accuracy(p, y) == pytest.approx(theirs, abs=1e-12)


def test_accuracy_equals_torchmetrics(random_predictions):
    from torchmetrics.functional.classification import multiclass_accuracy

    probs, labels = random_predictions(300, 7)
    theirs = multiclass_accuracy(probs, labels, num_classes=7, average="micro")
    assert accuracy(probs, labels) == pytest.approx(float(theirs), abs=1e-7)


def test_brier_of_two_classes_is_twice_the_binary_one(random_predictions):
    from sklearn.metrics import brier_score_loss

    probs, labels = random_predictions(97, 2)
    assert brier_score(probs, labels) == pytest.approx(2 * brier_score_loss(labels, probs[:, 1]))


def test_numpy_arrays_half_precision_and_uint8_labels_are_accepted(random_predictions):
    probs, labels = random_predictions(64, 3)
    as_arrays = scoring_metrics(probs.numpy(), labels.numpy().astype(np.uint8))
    assert as_arrays == scoring_metrics(probs, labels)
    assert brier_score(probs.bfloat16(), labels) == pytest.approx(as_arrays.brier, abs=1e-2)


def test_a_probability_that_rounding_has_put_above_one_is_a_probability():
    probs = torch.tensor([[1.0 + 1e-5, 0.0], [0.25, 0.75]])
    assert accuracy(probs, torch.tensor([0, 0])) == 0.5


def test_a_probability_of_zero_for_the_label_does_not_make_the_mean_infinite():
    probs = torch.tensor([[1.0, 0.0]])
    assert negative_log_likelihood(probs, torch.tensor([1])) == pytest.approx(-math.log(1e-12))


def test_labels_of_one_class_only_are_scored():
    probs = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    result = scoring_metrics(probs, torch.tensor([0, 0]))
    assert result.accuracy == 0.5
    assert result.brier == pytest.approx((2 * 0.25**2 + 2 * 0.75**2) / 2)


def test_metrics_survive_a_record(random_predictions):
    result = scoring_metrics(*random_predictions(20, 3))
    assert from_record(ScoringMetrics, to_record(result)) == result


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (torch.empty(0, 3), torch.empty(0, dtype=torch.long), "at least one sample"),
        (torch.ones(4, 1), torch.zeros(4, dtype=torch.long), "two classes"),
        (torch.ones(4), torch.zeros(4, dtype=torch.long), "samples, classes"),
        (torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]), "NaN .* row 0"),
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), "Apply softmax first"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.4]]), torch.tensor([0, 0]), "row 1 sums to 0.9"),
        (torch.tensor([[0, 1]]), torch.tensor([0]), "floating point"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), r"must lie in 0\.\.1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([-1]), r"must lie in 0\.\.1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]), "must be integers"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), "one label for each"),
    ],
)
def test_predictions_that_cannot_be_scored_are_refused(probs, labels, message):
    with pytest.raises(ConfigError, match=message):
        scoring_metrics(probs, labels)


def test_lists_of_numbers_are_taken_and_words_are_refused():
    assert accuracy([[0.6, 0.4], [0.3, 0.7]], [0, 0]) == 0.5  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="metrics take numbers"):
        accuracy(np.array([[0.6, 0.4]]), np.array(["cat"]))


def test_the_order_of_bytes_is_no_matter():
    probs, labels = np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([0, 0])
    expected = negative_log_likelihood(probs, labels)
    for kind in (">f8", ">f4", np.longdouble):
        found = negative_log_likelihood(probs.astype(kind), labels.astype(">i4"))
        assert found == pytest.approx(expected, rel=1e-6)
