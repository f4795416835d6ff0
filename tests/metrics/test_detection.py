import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from lrformer.core import ConfigError, NotFiniteError, to_record
from lrformer.metrics import (
    aupr,
    auroc,
    detection_metrics,
    fpr_at_tpr,
    roc_curve,
    scoring_metrics,
)
from lrformer.metrics.detection import _enough


def _sklearn(inside, outside):
    is_ood = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    scores = np.r_[inside.numpy(), outside.numpy()]

    def fpr95(truth, score):
        fpr, tpr, _ = sklearn_metrics.roc_curve(truth, score, drop_intermediate=False)
        return fpr[np.argmax(tpr >= 0.95)]

    return {
        "auroc": sklearn_metrics.roc_auc_score(is_ood, scores),
        "aupr_ood_positive": sklearn_metrics.average_precision_score(is_ood, scores),
        "aupr_id_positive": sklearn_metrics.average_precision_score(1 - is_ood, -scores),
        "fpr95_ood_positive": fpr95(is_ood, scores),
        "fpr95_id_positive": fpr95(1 - is_ood, -scores),
    }


@pytest.mark.parametrize("decimals", [15, 1, 0])
@pytest.mark.parametrize(("num_id", "num_ood"), [(400, 260), (20, 100), (1, 3)])
def test_every_detection_metric_equals_sklearn_with_and_without_ties(
    random_scores, num_id, num_ood, decimals
):
    inside, outside = random_scores(num_id, num_ood, decimals=decimals)
    ours = to_record(detection_metrics(inside, outside))
    for name, expected in _sklearn(inside, outside).items():
        assert ours[name] == pytest.approx(expected, abs=1e-12), name
    assert (ours["num_id"], ours["num_ood"]) == (num_id, num_ood)


def test_auroc_and_aupr_equal_torchmetrics(random_scores):
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision

    inside, outside = random_scores(120, 80, decimals=2)
    # torchmetrics squashes what is not a probability, so the scores go in as ranks in [0, 1].
    scores = torch.cat([inside, outside]).sigmoid()
    is_ood = torch.cat([torch.zeros(120), torch.ones(80)]).long()
    assert auroc(inside, outside) == pytest.approx(float(binary_auroc(scores, is_ood)), abs=1e-6)
    assert aupr(inside, outside) == pytest.approx(
        float(binary_average_precision(scores, is_ood)), abs=1e-6
    )
    assert aupr(inside, outside, positive="id") == pytest.approx(
        float(binary_average_precision(1 - scores, 1 - is_ood)), abs=1e-6
    )


@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=12),
    st.lists(st.integers(-4, 4), min_size=1, max_size=12),
)
def test_auroc_is_the_share_of_pairs_in_the_right_order(inside, outside):
    pairs = [(o > i) + 0.5 * (o == i) for i in inside for o in outside]
    ours = auroc(
        torch.tensor(inside, dtype=torch.double), torch.tensor(outside, dtype=torch.double)
    )
    assert ours == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_swapping_the_sets_and_the_sign_swaps_the_positive_class(random_scores):
    inside, outside = random_scores(70, 50, decimals=1)
    one, other = detection_metrics(inside, outside), detection_metrics(-outside, -inside)
    assert one.auroc == pytest.approx(other.auroc)
    assert one.aupr_ood_positive == pytest.approx(other.aupr_id_positive)
    assert one.fpr95_id_positive == pytest.approx(other.fpr95_ood_positive)


def test_a_perfect_score_is_perfect_and_a_constant_one_is_chance():
    perfect = detection_metrics(torch.zeros(30), torch.ones(10))
    assert (perfect.auroc, perfect.aupr_ood_positive, perfect.aupr_id_positive) == (1, 1, 1)
    assert (perfect.fpr95_ood_positive, perfect.fpr95_id_positive) == (0, 0)
    constant = detection_metrics(torch.zeros(30), torch.zeros(10))
    assert (constant.auroc, constant.aupr_ood_positive, constant.aupr_id_positive) == (
        0.5,
        0.25,
        0.75,
    )
    assert (constant.fpr95_ood_positive, constant.fpr95_id_positive) == (1, 1)


def test_fpr_counts_the_samples_beyond_the_threshold_by_hand():
    inside = torch.tensor([0.1, 0.2, 0.3, 0.4])
    outside = torch.tensor([0.25, 0.35, 0.5, 0.6])
    assert fpr_at_tpr(inside, outside, tpr=0.75, positive="ood") == 0.25
    assert fpr_at_tpr(inside, outside, tpr=0.75, positive="id") == 0.25
    assert fpr_at_tpr(inside, outside, tpr=1.0, positive="ood") == 0.5


def test_a_rate_that_is_reached_exactly_is_reached_in_floating_point_too():
    # In floating point 0.55 * 100 is a little above 55.
    scores = torch.arange(100, dtype=torch.float64)
    assert fpr_at_tpr(scores, scores + 0.5, tpr=0.55) == 0.54
    assert fpr_at_tpr(scores, scores + 0.5, tpr=0.55, positive="id") == 0.54


def test_the_area_under_the_curve_points_is_auroc(random_scores):
    inside, outside = random_scores(60, 40, decimals=1)
    curve = roc_curve(inside, outside)
    assert (curve.fpr[0], curve.tpr[0], curve.fpr[-1], curve.tpr[-1]) == (0, 0, 1, 1)
    area = sklearn_metrics.auc(curve.fpr, curve.tpr)
    assert area == pytest.approx(auroc(inside, outside), abs=1e-12)


def test_an_infinite_score_has_a_rank():
    assert auroc(torch.tensor([0.0, 1.0]), torch.tensor([float("inf"), 2.0])) == 1.0


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        (torch.empty(0), torch.ones(3), "id_scores .* at least one sample"),
        (torch.ones(3), torch.empty(0), "ood_scores .* at least one sample"),
        (torch.ones(3), torch.tensor([float("nan")]), "ood_scores is NaN for 1"),
        (torch.ones(3, 2), torch.ones(3), "id_scores has shape"),
    ],
)
def test_scores_without_a_rank_are_refused(inside, outside, message):
    with pytest.raises(ConfigError, match=message):
        detection_metrics(inside, outside)


def test_what_a_diverged_model_gives_is_told_from_a_mistake():
    with pytest.raises(NotFiniteError, match="id_scores is NaN"):
        detection_metrics(torch.tensor([float("nan"), 0.0]), torch.ones(2))
    with pytest.raises(NotFiniteError, match="probs is NaN or infinite in 1 rows"):
        scoring_metrics(torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]))


def test_a_positive_class_or_rate_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="'ood' or 'id'"):
        aupr(torch.zeros(2), torch.ones(2), positive="in")
    with pytest.raises(ConfigError, match=r"tpr \(95.0\)"):
        fpr_at_tpr(torch.zeros(2), torch.ones(2), tpr=95.0)


def test_how_many_are_enough_is_counted_alike_in_float32_and_float64():
    totals = torch.arange(1, 2**22, 997)[:, None]
    for share in (0.95, 0.9, 0.7):
        narrow = _enough(totals.float(), share)
        assert narrow.dtype == torch.float32
        assert torch.equal(narrow.double(), _enough(totals.double(), share))
