import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix as reference
from tests.evaluation.made_run import random_logits

from lrformer.core import ConfigError
from lrformer.metrics import confusion_matrix, wilson_interval


def test_the_matrix_is_that_of_sklearn_also_where_a_class_has_no_sample():
    logits, labels = random_logits(200, 6, seed=0)
    labels[labels == 4] = 1
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = reference(labels, probs.argmax(axis=1), labels=range(6))
    assert np.array_equal(confusion_matrix(probs, labels).numpy(), expected)
    assert not expected[4].any()


@pytest.mark.parametrize(("num_right", "total"), [(0, 1), (3, 7), (38, 38), (0, 50), (431, 500)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_a_share_is_scipys(num_right, total, level):
    found = wilson_interval(num_right, total, level=level)
    expected = binomtest(num_right, total).proportion_ci(level, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.low <= found.value == num_right / total <= found.high
    assert found.high > found.low


def test_a_share_of_nothing_has_no_interval():
    with pytest.raises(ConfigError, match=r"num_right \(0\) must be from 0 to total \(0\)"):
        wilson_interval(0, 0)
    with pytest.raises(ConfigError, match=r"level \(1.0\)"):
        wilson_interval(1, 2, level=1.0)
