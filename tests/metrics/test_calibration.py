import numpy as np
import pytest
import torch

from lrformer.core import ConfigError
from lrformer.metrics import (
    calibration_metrics,
    class_wise_calibration_error,
    expected_calibration_error,
    reliability_bins,
)
from lrformer.metrics.calibration import ece_draws, equal_width_bins, gaps_of_every_class


def _slow_equal_width(confidence, correct, num_bins):
    error = 0.0
    edges = [j / num_bins for j in range(num_bins + 1)]
    for j in range(num_bins):
        last = j == num_bins - 1
        members = [
            i
            for i, c in enumerate(confidence)
            if edges[j] <= c and (c < edges[j + 1] or (last and c <= 1.0 + 1e-9))
        ]
        if members:
            gap = np.mean([confidence[i] for i in members]) - np.mean([correct[i] for i in members])
            error += len(members) / len(confidence) * abs(gap)
    return error


@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_equal_width_error_equals_torchmetrics_and_a_slow_loop(random_predictions, num_bins):
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, labels = random_predictions(400, 6)
    ours = expected_calibration_error(probs, labels, num_bins=num_bins)
    theirs = multiclass_calibration_error(probs, labels, num_classes=6, n_bins=num_bins)
    correct = (probs.argmax(1) == labels).double().tolist()
    assert ours == pytest.approx(float(theirs), abs=1e-6)
    assert ours == pytest.approx(
        _slow_equal_width(probs.amax(1).tolist(), correct, num_bins), abs=1e-12
    )


def test_a_confidence_on_an_edge_belongs_to_the_bin_above_as_in_torchmetrics():
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.125, 0.125], [0.375, 0.3125, 0.3125]])
    labels = torch.tensor([0, 1, 0])
    ours = expected_calibration_error(probs, labels, num_bins=2)
    theirs = multiclass_calibration_error(probs, labels, num_classes=3, n_bins=2)
    assert ours == pytest.approx(float(theirs), abs=1e-6)
    assert ours == pytest.approx((abs(0.5 + 0.75 - 1) + abs(0.375 - 1)) / 3, abs=1e-12)


def test_a_decimal_confidence_on_an_edge_belongs_to_the_bin_above_for_any_number_of_bins():
    for num_bins in range(1, 101):
        on_edges = torch.tensor([k / num_bins for k in range(num_bins)], dtype=torch.float64)
        below = on_edges[1:].nextafter(torch.zeros(1, dtype=torch.float64))
        assert equal_width_bins(on_edges, num_bins).tolist() == list(range(num_bins))
        assert equal_width_bins(below, num_bins).tolist() == list(range(num_bins - 1))


def test_a_confidence_of_one_belongs_to_the_last_bin_with_those_below_it():
    probs = torch.tensor([[1.0, 0.0], [0.95, 0.05], [0.95, 0.05]], dtype=torch.float64)
    labels = torch.tensor([1, 0, 0])
    assert reliability_bins(probs, labels, num_bins=10).counts == (0,) * 9 + (3,)
    # Gaps of both signs, which would not cancel in bins of their own.
    ours = expected_calibration_error(probs, labels, num_bins=10)
    assert ours == pytest.approx((1 - 0.05 - 0.05) / 3)


def test_a_confidence_of_three_tenths_is_drawn_in_the_fourth_of_ten_bins():
    probs = torch.tensor([[0.3, 0.25, 0.25, 0.2]], dtype=torch.float64)
    bins = reliability_bins(probs, torch.tensor([0]), num_bins=10)
    assert bins.counts.index(1) == 3
    assert bins.edges[3] == 0.3


@pytest.mark.parametrize("num_samples", [7, 150, 401])
def test_equal_mass_error_equals_bins_cut_by_numpy(random_predictions, num_samples):
    probs, labels = random_predictions(num_samples, 4)
    confidence = probs.amax(1).numpy()
    correct = (probs.argmax(1) == labels).double().numpy()
    order = np.argsort(confidence)
    expected = sum(
        abs((confidence[part] - correct[part]).sum()) / num_samples
        for part in np.array_split(order, 15)
    )
    ours = expected_calibration_error(probs, labels, binning="equal_mass")
    assert ours == pytest.approx(expected, abs=1e-12)


def test_the_first_bins_of_equal_mass_hold_what_cannot_be_shared_out():
    # Gaps of both signs: where they have one, the error is the same however the bins are cut.
    confidence = np.array([0.55, 0.6, 0.7, 0.8, 0.9])
    probs = torch.tensor(np.stack([confidence, 1 - confidence], axis=1))
    labels = torch.tensor([0, 1, 0, 1, 0])
    gaps = confidence - np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    expected = (abs(gaps[:3].sum()) + abs(gaps[3:].sum())) / 5
    ours = expected_calibration_error(probs, labels, num_bins=2, binning="equal_mass")
    assert ours == pytest.approx(expected, abs=1e-12)
    assert abs(expected - (abs(gaps[:2].sum()) + abs(gaps[2:].sum())) / 5) > 0.01


def test_equal_mass_error_does_not_depend_on_the_order_of_equal_confidences():
    probs = torch.tensor([[0.8, 0.2]], dtype=torch.float64).repeat(30, 1)
    labels = torch.tensor([0] * 20 + [1] * 10)
    expected = 0.8 - 20 / 30
    for shift in range(0, 30, 7):
        ours = expected_calibration_error(probs, labels.roll(shift), binning="equal_mass")
        assert ours == pytest.approx(expected, abs=1e-12)


def test_class_wise_error_equals_a_slow_loop_over_classes(random_predictions):
    probs, labels = random_predictions(300, 37)
    expected = np.mean(
        [_slow_equal_width(probs[:, k].tolist(), (labels == k).double(), 15) for k in range(37)]
    )
    assert class_wise_calibration_error(probs, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_bins", [1, 10, 15, 60])
def test_class_wise_error_of_a_draw_is_that_of_the_samples_it_holds(random_predictions, num_bins):
    probs, labels = random_predictions(60, 37)
    # Rounded, so that many probabilities lie on an edge and many are 0.
    probs = probs.round(decimals=1)
    probs[:, 0] += 1 - probs.sum(dim=1)
    probs = probs.clamp_min(0)
    counts = torch.randint(0, 3, (5, 60), generator=torch.Generator().manual_seed(1))
    errors = ece_draws(counts.double(), gaps_of_every_class(probs, labels, num_bins=num_bins))
    for error, row in zip(errors.tolist(), counts, strict=True):
        p, y = (values.repeat_interleave(row, dim=0) for values in (probs, labels))
        slow = [_slow_equal_width(p[:, k].tolist(), (y == k).double(), num_bins) for k in range(37)]
        assert error == pytest.approx(np.mean(slow), abs=1e-12)


def test_sure_and_right_is_perfect_and_sure_and_wrong_is_the_worst():
    probs = torch.eye(3, dtype=torch.float64)
    right = calibration_metrics(probs, torch.tensor([0, 1, 2]))
    wrong = calibration_metrics(probs, torch.tensor([1, 2, 0]))
    assert (right.ece_equal_width, right.ece_equal_mass, right.ece_class_wise) == (0, 0, 0)
    assert (wrong.ece_equal_width, wrong.ece_equal_mass) == (1, 1)
    assert wrong.ece_class_wise == pytest.approx(2 / 3)
    assert right.num_bins == 15


def test_the_three_errors_together_are_the_three_errors_alone(random_predictions):
    probs, labels = random_predictions(200, 5)
    together = calibration_metrics(probs, labels, num_bins=8)
    alone = [expected_calibration_error(probs, labels, num_bins=8, binning=b)
             for b in ("equal_width", "equal_mass")]  # fmt: skip
    assert [together.ece_equal_width, together.ece_equal_mass] == alone
    assert together.ece_class_wise == class_wise_calibration_error(probs, labels, num_bins=8)


def test_reliability_bins_sum_to_the_calibration_error(random_predictions):
    probs, labels = random_predictions(500, 4)
    bins = reliability_bins(probs, labels, num_bins=12)
    assert sum(bins.counts) == 500
    assert len(bins.edges) == 13
    gaps = 0.0
    for count, confidence, accuracy in zip(
        bins.counts, bins.confidence, bins.accuracy, strict=True
    ):
        assert (confidence is None) == (accuracy is None) == (count == 0)
        if confidence is not None and accuracy is not None:
            gaps += count / 500 * abs(confidence - accuracy)
    assert gaps == pytest.approx(expected_calibration_error(probs, labels, num_bins=12), abs=1e-12)
    assert bins.counts[0] == 0  # four classes: the largest is at least 1/4


def test_a_wrong_binning_gets_a_hint_and_no_bins_an_error(random_predictions):
    probs, labels = random_predictions(10, 3)
    with pytest.raises(ConfigError, match="Did you mean 'equal_mass'"):
        expected_calibration_error(probs, labels, binning="equal-mass")
    with pytest.raises(ConfigError, match="num_bins"):
        calibration_metrics(probs, labels, num_bins=0)
