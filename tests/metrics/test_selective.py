import itertools

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError
from lrformer.metrics import accuracy_at_coverage, aurc, risk_coverage_curve, selective_metrics


def _slow_aurc(uncertainty, wrong):
    order = np.argsort(uncertainty, kind="stable")
    return np.mean([np.mean(np.asarray(wrong)[order[:k]]) for k in range(1, len(order) + 1)])


def test_aurc_equals_a_slow_loop_over_coverages(random_predictions):
    probs, labels = random_predictions(150, 4)
    uncertainty = 1 - probs.amax(1)
    wrong = (probs.argmax(1) != labels).double()
    assert aurc(uncertainty, probs, labels) == pytest.approx(
        _slow_aurc(uncertainty.numpy(), wrong.numpy()), abs=1e-12
    )


def test_aurc_of_equal_scores_is_the_mean_over_all_their_orders():
    probs = torch.tensor([[0.9, 0.1]]).repeat(6, 1)
    labels = torch.tensor([0, 1, 0, 0, 1, 0])
    uncertainty = torch.tensor([0.0, 0.5, 0.5, 0.5, 0.5, 1.0])
    slow = []
    for middle in itertools.permutations([1, 2, 3, 4]):
        wrong = (labels[[0, *middle, 5]] == 1).double().numpy()
        slow.append(_slow_aurc(np.arange(6.0), wrong))
    assert aurc(uncertainty, probs, labels) == pytest.approx(np.mean(slow), abs=1e-12)


def test_a_score_that_says_nothing_gives_the_error_rate():
    probs = torch.tensor([[0.9, 0.1]]).repeat(10, 1)
    labels = torch.tensor([0] * 7 + [1] * 3)
    result = selective_metrics(torch.zeros(10), probs, labels)
    assert result.aurc == pytest.approx(0.3)
    assert result.accuracies == pytest.approx((0.7,) * 4)


# In floating point 0.55 * 100 is a little above 55.
@pytest.mark.parametrize("coverage", [0.1, 0.5, 0.55, 0.9, 1.0])
def test_accuracy_at_coverage_equals_sorting_and_cutting(random_predictions, coverage):
    probs, labels = random_predictions(100, 3)
    uncertainty = -(probs * probs.log()).sum(1)
    kept = uncertainty.argsort()[: round(coverage * 100)]
    expected = (probs.argmax(1) == labels)[kept].double().mean()
    ours = accuracy_at_coverage(uncertainty, probs, labels, coverage=coverage)
    assert ours == pytest.approx(float(expected), abs=1e-12)


def test_the_curve_ends_at_full_coverage_with_the_error_rate(random_predictions):
    probs, labels = random_predictions(80, 3)
    curve = risk_coverage_curve(1 - probs.amax(1), probs, labels)
    assert curve.coverage[0] == pytest.approx(1 / 80)
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(float((probs.argmax(1) != labels).double().mean()))
    assert np.mean(curve.risk) == pytest.approx(aurc(1 - probs.amax(1), probs, labels))


def test_scores_that_do_not_belong_to_the_predictions_are_refused(random_predictions):
    probs, labels = random_predictions(8, 3)
    with pytest.raises(ConfigError, match="7 samples but there are 8"):
        aurc(torch.zeros(7), probs, labels)
    with pytest.raises(ConfigError, match="uncertainty is NaN"):
        aurc(torch.full((8,), float("nan")), probs, labels)
    with pytest.raises(ConfigError, match="coverage"):
        accuracy_at_coverage(torch.zeros(8), probs, labels, coverage=0.0)
