import pytest
import torch

from lrformer.core import ConfigError, NotFiniteError, from_record, to_record
from lrformer.metrics import Overconfidence, logit_norms, overconfidence


def test_overconfidence_equals_the_definition_in_a_slow_loop(random_predictions):
    probs, labels = random_predictions(300, 5)
    wrong_confidences = []
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        largest_other = max(p for k, p in enumerate(row) if k != label)
        if largest_other > row[label]:
            wrong_confidences.append(largest_other)
    result = overconfidence(probs, labels, threshold=0.6)
    above = sum(p > 0.6 for p in wrong_confidences)
    assert above > 5
    assert result.num_wrong == len(wrong_confidences)
    assert result.rate == pytest.approx(above / 300)
    assert result.rate_when_wrong == pytest.approx(above / len(wrong_confidences))
    assert result.mean_confidence_when_wrong == pytest.approx(
        sum(wrong_confidences) / len(wrong_confidences)
    )
    assert result.mean_confidence == pytest.approx(float(probs.amax(1).mean()))


def test_without_labels_every_prediction_is_wrong():
    probs = torch.tensor([[0.95, 0.05], [0.6, 0.4]])
    result = overconfidence(probs, threshold=0.9)
    assert (result.num_wrong, result.rate, result.rate_when_wrong) == (2, 0.5, 0.5)
    assert result.mean_confidence_when_wrong == pytest.approx(0.775)


def test_a_wrong_prediction_at_the_threshold_itself_is_not_overconfident():
    probs = torch.tensor([[0.75, 0.25], [0.875, 0.125]], dtype=torch.float64)
    assert overconfidence(probs, threshold=0.75).rate == 0.5


def test_where_nothing_is_wrong_the_confidence_when_wrong_is_none_and_goes_into_a_record():
    result = overconfidence(torch.tensor([[0.95, 0.05]]), torch.tensor([0]))
    assert result.rate == 0
    assert result.rate_when_wrong is None
    assert result.mean_confidence_when_wrong is None
    assert from_record(Overconfidence, to_record(result)) == result


def test_logit_norms_equal_the_square_root_of_sums():
    norms = logit_norms(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    assert (norms.mean, norms.std) == (3.0, 2.0)


def test_what_has_no_norm_is_refused():
    with pytest.raises(NotFiniteError, match="NaN or infinite"):
        logit_norms(torch.tensor([[float("nan"), 1.0]]))
    with pytest.raises(ConfigError, match="not empty"):
        logit_norms(torch.empty(0, 3))
    with pytest.raises(ConfigError, match="threshold"):
        overconfidence(torch.tensor([[0.5, 0.5]]), threshold=1.5)
