import dataclasses
import json

import numpy as np
import pytest

from lrformer.core import ConfigError, from_record, to_record
from lrformer.evaluation import (
    CORRUPTED_MEAN,
    EvaluationConfig,
    Scores,
    evaluate,
    evaluate_run,
    find_files,
    from_arrays,
    over_seeds,
    predict_files,
)
from lrformer.evaluation.measure import generator_of
from lrformer.evaluation.sentences import operating_point
from lrformer.evaluation.text_table import text_rows
from lrformer.methods import AbstentionRule
from lrformer.metrics.resampling import draw_counts
from tests.evaluation.test_evaluate import FEW, LABELS, PROBS, UNKNOWN, _set

ACCEPTED = "accepted_at_threshold"


def by_msp(probs, labels=None, name="test"):
    return from_arrays(probs, labels, name=name, default_score="msp")


def test_what_is_accepted_is_the_share_at_or_below_the_threshold_by_paper_and_pencil():
    # 1 - max p: 0.1, 0.4, 0.2, 0.05 known and 0.5, 0.01, 0.3 unknown.
    rule = AbstentionRule(score="msp", threshold=0.2)
    scores = evaluate(by_msp(PROBS, LABELS), ood={"far": by_msp(UNKNOWN)}, rule=rule, config=FEW)
    assert scores(ACCEPTED) == 0.75
    assert scores(ACCEPTED, dataset="far") == pytest.approx(1 / 3)
    expected = "At the kept threshold (msp <= 0.2): 75.0% of test, 33.3% of far are accepted."
    assert operating_point(scores) == expected


def test_the_interval_of_what_is_accepted_equals_a_loop_that_gathers_every_draw():
    test, far = _set(0), _set(1, labeled=False, num_samples=50)
    rule = AbstentionRule(score="entropy", threshold=float(np.median(far.uncertainty("entropy"))))
    metric = evaluate(test, ood={"far": far}, rule=rule, config=FEW).select(dataset="far", score="entropy")[ACCEPTED]  # fmt: skip
    is_accepted = far.uncertainty("entropy") <= rule.threshold + 1e-9
    counts = draw_counts(20, 50, generator=generator_of(FEW, "far", "accepted")).long()
    draws = [np.repeat(is_accepted, row).mean() for row in counts]
    assert (metric.low, metric.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])))


def test_a_threshold_changes_no_other_figure_and_without_one_nothing_is_said_of_it():
    test, far, fog = _set(0), _set(1, labeled=False), _set(2, name="fog-1")
    sets = {"ood": {"far": far}, "corrupted": {"fog-1": fog}, "config": FEW}
    rule = AbstentionRule(score="entropy", threshold=0.8)
    scores, without = evaluate(test, rule=rule, **sets), evaluate(test, **sets)
    assert tuple(metric for metric in scores if metric.name != ACCEPTED) == without.metrics
    named = {metric.dataset for metric in scores if metric.name == ACCEPTED}
    assert named == {"test", "far", "fog-1", CORRUPTED_MEAN}
    assert operating_point(without) is None
    assert ACCEPTED not in without.conventions
    assert "kept with the model" in scores.conventions[ACCEPTED]
    shown = {row[0] for row in text_rows(scores) if row[1] == "Accepted"}
    assert shown == {"test", "far", CORRUPTED_MEAN}
    assert not any(row[1] == "Accepted" for row in text_rows(without))


def test_the_threshold_survives_json_and_is_averaged_over_seeds():
    rule = AbstentionRule(score="entropy", threshold=0.8)
    runs = [evaluate(_set(seed), rule=rule, config=FEW) for seed in (0, 1)]
    assert from_record(Scores, json.loads(json.dumps(to_record(runs[0])))) == runs[0]
    mean = over_seeds(runs).select(dataset="test", score="entropy")[ACCEPTED]
    assert mean.value == pytest.approx((runs[0](ACCEPTED) + runs[1](ACCEPTED)) / 2)


def test_a_threshold_of_another_score_and_none_at_all_are_refused():
    with pytest.raises(ConfigError, match=r"rule.score \('msp'\) must be the default score of test \('entropy'\); give"):  # fmt: skip
        evaluate(_set(0), rule=AbstentionRule(score="msp", threshold=0.2))
    with pytest.raises(ConfigError, match=r"rule \(a float\) must be an AbstentionRule"):
        evaluate(_set(0), rule=0.2)  # pyright: ignore[reportArgumentType]


def test_a_run_accepts_what_it_accepts_of_the_files_themselves(run, workspace):
    scores = evaluate_run(run, config=EvaluationConfig(num_draws=5), device="cpu").scores
    for dataset, folder in (("data/test", "test"), ("ood-gray", "ood-gray")):
        rows = list(predict_files(run, find_files([str(workspace / "data" / folder)])))
        share = sum(row.is_in_distribution for row in rows) / len(rows)
        assert scores(ACCEPTED, dataset=dataset) == pytest.approx(share)
    said = operating_point(scores)
    assert said.startswith(
        f"At the run's threshold ({run.decision.score} <= {run.threshold:.4g}): "
    )


def test_the_share_of_validation_is_the_one_that_the_threshold_was_fitted_to(run):
    data = f"{run.config.train.data}:val"
    scores = evaluate_run(run, data=data, ood=[], config=EvaluationConfig(num_draws=5), device="cpu").scores  # fmt: skip
    # Of 36 images at least 95% are 35; the last of them lies on the threshold itself.
    assert scores(ACCEPTED) == pytest.approx(35 / 36)


def test_predictions_without_the_temperature_have_no_threshold_and_say_why(run):
    scores = evaluate_run(run, is_calibrated=False, config=FEW, device="cpu").scores
    assert scores.rule is None
    assert not any(metric.name == ACCEPTED for metric in scores)
    assert scores.about["threshold"].endswith("with the temperature; left out without it")
    lax = dataclasses.replace(run, decision=dataclasses.replace(run.decision, threshold=1e9))
    assert evaluate_run(lax, config=FEW, device="cpu").scores(ACCEPTED) == 1


@pytest.mark.parametrize(("rate", "shown"), [(0.95, "95%"), (0.995, "99.5%")])
def test_the_share_that_is_accepted_is_said_without_rounding_it_to_all(run, rate, shown):
    decision = dataclasses.replace(run.decision, true_positive_rate=rate)
    asked = dataclasses.replace(run, decision=decision)
    scores = evaluate_run(asked, ood=[], config=FEW, device="cpu").scores
    assert f"(keeps {shown} of the validation set)" in scores.about["threshold"]
