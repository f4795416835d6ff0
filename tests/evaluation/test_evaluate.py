import json
import math
import time

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError, from_record, make_generator, to_record
from lrformer.evaluation import (
    CORRUPTED_MEAN,
    EvaluationConfig,
    Scores,
    evaluate,
    from_arrays,
)
from lrformer.evaluation.measure import generator_of
from lrformer.evaluation.words import direction
from lrformer.metrics import (
    balanced_accuracy,
    calibration_metrics,
    detection_metrics,
    overconfidence,
    scoring_metrics,
    selective_metrics,
)
from lrformer.metrics import bootstrap as bootstrap_file
from lrformer.metrics.resampling import draw_counts
from tests.evaluation.made_run import random_logits

FEW = EvaluationConfig(num_draws=20)
# Four predictions, of which the last is wrong and sure of it.
PROBS = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.95, 0.05]])
LABELS = np.array([0, 0, 1, 1])
UNKNOWN = np.array([[0.5, 0.5], [0.99, 0.01], [0.3, 0.7]])


def _set(seed, *, labeled=True, num_samples=60, name="test"):
    logits, labels = random_logits(num_samples, 4, seed=seed)
    probs = torch.from_numpy(logits).softmax(-1).numpy()
    return from_arrays(probs, labels if labeled else None, logits=logits, name=name)


def test_every_figure_of_a_small_case_is_what_paper_and_pencil_give():
    scores = evaluate(from_arrays(PROBS, LABELS), ood={"far": from_arrays(UNKNOWN)}, config=FEW)
    assert scores("accuracy") == 0.75
    assert scores("nll") == pytest.approx(-sum(map(math.log, (0.9, 0.6, 0.8, 0.05))) / 4)
    assert scores("brier") == pytest.approx(2 * (0.01 + 0.16 + 0.04 + 0.9025) / 4)
    # Each sample falls into a bin of its own: 0.9 is below 14/15, and 0.95 above.
    assert scores("ece_equal_width") == pytest.approx((0.1 + 0.4 + 0.2 + 0.95) / 4)
    assert scores("overconfidence_rate") == 0.25
    assert scores("overconfidence_rate_when_wrong") == 1
    assert scores("overconfidence_mean_confidence_when_wrong") == pytest.approx(0.95)
    assert scores("overconfidence_mean_confidence") == pytest.approx(0.8125)
    # By 1 - max p the order is 0.05 (wrong), 0.1, 0.2, 0.4: error rates 1, 1/2, 1/3, 1/4.
    assert scores("aurc", score="msp") == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert scores("accuracy_at_0.5", score="msp") == 0.5
    # Unknown scores 0.5, 0.01, 0.3 against 0.1, 0.4, 0.2, 0.05: pairs won 4 + 0 + 3 of 12.
    assert scores("auroc", dataset="far", score="msp") == pytest.approx(7 / 12)
    # Found at ranks 1, 3 and 7 of the seven.
    assert scores("aupr_ood_positive", dataset="far", score="msp") == pytest.approx(
        (1 + 2 / 3 + 3 / 7) / 3
    )
    assert scores("fpr95_ood_positive", dataset="far", score="msp") == 1
    assert scores("overconfidence_rate", dataset="far") == pytest.approx(1 / 3)
    assert scores("overconfidence_mean_confidence", dataset="far") == pytest.approx(2.19 / 3)


def test_every_value_is_that_of_the_metric_functions_for_every_set_and_score():
    test, far, shifted = _set(0), _set(1, labeled=False, name="far"), _set(2, name="fog-1")
    scores = evaluate(test, ood={"far": far}, corrupted={"fog-1": shifted}, config=FEW)
    for predictions, name in ((test, "test"), (shifted, "fog-1")):
        p, y = predictions.probs, predictions.labels
        expected = {
            **to_record(scoring_metrics(p, y)),
            **to_record(calibration_metrics(p, y)),
            **{f"overconfidence_{k}": v for k, v in to_record(overconfidence(p, y)).items()},
            "logit_norm": predictions.logit_norm.mean(),
            "balanced_accuracy": balanced_accuracy(p, y),
        }
        found = scores.select(dataset=name)
        assert len(found) == 12
        assert {n: m.value for n, m in found.items()} == pytest.approx(
            {n: expected[n] for n in found}
        )
        for score, values in predictions.scores.items():
            ranked = selective_metrics(values, p, y)
            assert scores("aurc", dataset=name, score=score) == pytest.approx(ranked.aurc)
            assert scores("accuracy_at_0.9", dataset=name, score=score) == pytest.approx(
                ranked.accuracies[ranked.coverages.index(0.9)]
            )
    for outside, name in ((far, "far"), (shifted, "fog-1")):
        for score in test.scores:
            found = to_record(detection_metrics(test.scores[score], outside.scores[score]))
            for metric in ("auroc", "aupr_ood_positive", "aupr_id_positive", "fpr95_ood_positive", "fpr95_id_positive"):  # fmt: skip
                assert scores(metric, dataset=name, score=score) == pytest.approx(found[metric])
    assert scores.given_scores == ("msp", "entropy", "dempster_shafer", "energy")


def test_all_scores_of_every_set_have_intervals_that_hold_their_value():
    shifted = {"fog-1": _set(2, name="fog-1"), "fog-2": _set(3, name="fog-2")}
    scores = evaluate(_set(0), ood={"far": _set(1, labeled=False)}, corrupted=shifted, config=FEW)
    measured = [metric for metric in scores if metric.dataset != CORRUPTED_MEAN]
    assert {metric.dataset for metric in measured} == {"test", "far", "fog-1", "fog-2"}
    for metric in measured:
        assert metric.low is not None, metric
        assert metric.low <= metric.high
    inside = [metric for metric in measured if metric.low <= metric.value <= metric.high]
    assert len(inside) > 0.8 * len(measured)


def test_the_interval_of_a_mean_equals_a_loop_that_gathers_every_draw():
    test, far = _set(0), _set(1, labeled=False, num_samples=50)
    metric = evaluate(test, ood={"far": far}, config=FEW).select(dataset="far")["logit_norm"]
    counts = draw_counts(20, 50, generator=generator_of(FEW, "far", "means")).long()
    draws = [np.repeat(far.logit_norm, row).mean() for row in counts]
    assert (metric.low, metric.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])))


def test_no_set_is_drawn_more_at_a_time_than_memory_is_meant_to_hold(monkeypatch):
    sizes = []

    def spy(high, shape, **options):
        sizes.append(math.prod(shape))
        return randint(high, shape, **options)

    test, far = _set(0), _set(1, labeled=False, num_samples=50)
    randint = torch.randint
    monkeypatch.setattr(torch, "randint", spy)
    monkeypatch.setattr(bootstrap_file, "COUNTS_AT_A_TIME", 7 * 110)
    evaluate(test, ood={"far": far}, config=FEW)
    assert max(sizes) <= 7 * 110


def test_the_figures_of_a_set_do_not_depend_on_what_else_is_evaluated():
    test, far, near = _set(0), _set(1, labeled=False), _set(2, labeled=False)
    alone = evaluate(test, ood={"far": far}, config=FEW)
    together = evaluate(test, ood={"near": near, "far": far}, config=FEW)
    for dataset in ("test", "far"):
        assert [m for m in alone if m.dataset == dataset] == [
            m for m in together if m.dataset == dataset
        ]
    other_seed = evaluate(test, ood={"far": far}, config=EvaluationConfig(num_draws=20, seed=1))
    assert other_seed.metrics != alone.metrics
    assert [m.value for m in other_seed] == [m.value for m in alone]


def test_every_set_has_draws_of_its_own():
    far = _set(1, labeled=False)
    scores = evaluate(_set(0), ood={"a": far, "b": far}, config=FEW)
    first, second = (scores.select(dataset=name, score="entropy")["auroc"] for name in "ab")
    assert first.value == second.value
    assert (first.low, first.high) != (second.low, second.high)


def test_the_mean_over_corrupted_sets_is_their_mean():
    shifted = {f"fog-{s}": _set(s, name=f"fog-{s}") for s in (1, 2, 3)}
    scores = evaluate(_set(0), corrupted=shifted, config=FEW)
    accuracies = [scores("accuracy", dataset=name) for name in shifted]
    assert scores("accuracy", dataset=CORRUPTED_MEAN) == pytest.approx(np.mean(accuracies))
    aurcs = [scores("aurc", dataset=name, score="msp") for name in shifted]
    assert scores("aurc", dataset=CORRUPTED_MEAN, score="msp") == pytest.approx(np.mean(aurcs))
    assert scores.of_role("mean")[0].num_samples == 180


def test_a_figure_that_one_corrupted_set_lacks_has_no_mean_over_them():
    def corrupted(name, labels):
        return from_arrays(PROBS, labels, name=name)

    # Without a wrong prediction there is no confidence of one.
    right = PROBS.argmax(axis=1)
    shifted = {name: corrupted(name, y) for name, y in (("fog-1", LABELS), ("fog-2", right))}
    found = evaluate(corrupted("test", LABELS), corrupted=shifted, config=FEW)
    name = "overconfidence_mean_confidence_when_wrong"
    assert found(name, dataset="fog-1") == pytest.approx(0.95)
    assert name not in found.select(dataset=CORRUPTED_MEAN)
    assert found("accuracy", dataset=CORRUPTED_MEAN) == pytest.approx((0.75 + 1) / 2)


def test_scores_survive_json_and_state_their_conventions():
    scores = evaluate(_set(0), ood={"far": _set(1, labeled=False)}, config=EvaluationConfig(num_draws=7, num_bins=10))  # fmt: skip
    back = from_record(Scores, json.loads(json.dumps(to_record(scores))))
    assert back == scores
    assert "10 bins" in back.conventions["ece"]
    assert "OOD is the positive class" in back.conventions["auroc"]
    assert "7 draws" in back.conventions["intervals"]
    assert "95% TPR" in back.conventions["fpr95"]


def test_a_figure_that_was_not_measured_is_refused_with_the_nearest_name():
    scores = evaluate(_set(0), config=FEW)
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        scores("acuracy")
    with pytest.raises(ConfigError, match="no set 'svhn' was evaluated"):
        scores("auroc", dataset="svhn")


def test_of_a_score_it_is_said_whether_it_is_unknown_or_only_the_metric():
    scores = evaluate(_set(0), ood={"far": _set(1, labeled=False)}, config=FEW)
    with pytest.raises(ConfigError, match=r"no score 'entrpy'\. Did you mean 'entropy'\? There are: msp, entropy, "):  # fmt: skip
        scores("auroc", dataset="far", score="entrpy")
    with pytest.raises(ConfigError, match=r"'accuracy' ranks by no score; leave score \('msp'\)"):
        scores("accuracy", score="msp")
    with pytest.raises(ConfigError, match=r"far by msp\. Did you mean 'auroc'") as error:
        scores("aurok", dataset="far", score="msp")
    assert "overconfidence" not in str(error.value)
    with pytest.raises(ConfigError, match="no set 'fra' was evaluated"):
        scores("auroc", dataset="fra", score="entrpy")


def test_sets_without_names_and_bare_arrays_are_refused():
    far = _set(1, labeled=False)
    for name, given, what in (
        ("ood", [far], r"ood \(a list\)"),
        ("ood", far, r"ood \(a Predictions\)"),
        ("ood", {"far": far.probs}, r"ood\['far'\] \(a ndarray\)"),
        ("corrupted", (far,), r"corrupted \(a tuple\)"),
    ):
        with pytest.raises(ConfigError, match=f"{what} must be predictions by their names; give"):
            evaluate(_set(0), **{name: given})


def test_what_describes_a_model_and_does_not_judge_it_has_no_better_direction():
    names = {
        1: ("accuracy", "accuracy_at_0.9", "auroc", "aupr_ood_positive"),
        -1: ("nll", "ece_equal_mass", "aurc", "fpr95_id_positive", "overconfidence_rate"),
        0: ("logit_norm", "overconfidence_mean_confidence"),
    }
    for better, found in names.items():
        assert {direction(name) for name in found} == {better}


def test_sets_that_cannot_be_compared_are_refused_before_any_draw():
    test = _set(0)
    with pytest.raises(ConfigError, match="test has no labels"):
        evaluate(_set(0, labeled=False))
    with pytest.raises(ConfigError, match="fog has no labels"):
        evaluate(test, corrupted={"fog": _set(1, labeled=False)})
    with pytest.raises(ConfigError, match="two sets are named 'a'"):
        evaluate(test, ood={"a": _set(1)}, corrupted={"a": _set(1)})
    with pytest.raises(ConfigError, match="of 2 classes but test of 4"):
        evaluate(test, ood={"far": from_arrays(UNKNOWN)})
    with pytest.raises(ConfigError, match="far lacks the score dempster_shafer"):
        evaluate(test, ood={"far": from_arrays(test.probs)})
    with pytest.raises(ConfigError, match="num_bins"):
        EvaluationConfig(num_bins=0)
    with pytest.raises(ConfigError, match="num_draws"):
        EvaluationConfig(num_draws=0)
    with pytest.raises(ConfigError, match=r"num_draws \(2.5\) must be a whole number"):
        EvaluationConfig(num_draws=2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"coverages .* must differ"):
        EvaluationConfig(coverages=(0.5, 0.50000001))


def test_a_thousand_draws_of_every_metric_of_ten_thousand_predictions_fit_ten_seconds_of_two_cores():
    generator = make_generator(0)
    labels = torch.randint(10, (10_000,), generator=generator)
    logits = torch.randn(10_000, 10, generator=generator, dtype=torch.float64)
    logits[torch.arange(10_000), labels] += 2
    made = from_arrays(logits.softmax(-1).numpy(), labels.numpy(), logits=logits.numpy())
    assert len(made.scores) == 4
    start = time.process_time()
    evaluate(made, corrupted={"fog-1": made})
    # Processor time over all threads: a busy machine must not fail the test.
    assert time.process_time() - start < 2 * 10
