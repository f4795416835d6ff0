import math
import time

import pytest
import torch
from scipy import stats

from lrformer.core import ConfigError, make_generator, to_record
from lrformer.metrics import (
    balanced_accuracy,
    bootstrap_classification,
    bootstrap_detection,
    bootstrap_detection_scores,
    bootstrap_means,
    bootstrap_selective,
    bootstrap_selective_scores,
    calibration_metrics,
    detection_metrics,
    overconfidence,
    resampling,
    scoring_metrics,
    seed_interval,
    selective_metrics,
)
from lrformer.metrics import bootstrap as bootstrap_file
from lrformer.metrics import calibration as calibration_file
from lrformer.metrics.bootstrap import bootstrap_differences
from lrformer.metrics.drawn_metrics import (
    classification_measure,
    detection_measure,
    mean_measure,
)
from lrformer.metrics.resampling import draw_counts

NUM_DRAWS = 40


def _gathered(num_samples, *, generator):
    """Return for every draw the samples that it holds, one index for each."""
    counts = draw_counts(NUM_DRAWS, num_samples, generator=generator).long()
    assert (counts.sum(dim=1) == num_samples).all()
    return [torch.repeat_interleave(torch.arange(num_samples), row) for row in counts]


def _assert_percentiles(intervals, draws, *, tolerance=1e-11):
    for name, interval in intervals.items():
        values = torch.tensor([draw[name] for draw in draws], dtype=torch.float64)
        tails = torch.tensor([0.05, 0.95], dtype=torch.float64)
        low, high = values.nanquantile(tails).tolist()
        assert interval.low == pytest.approx(low, abs=tolerance), name
        assert interval.high == pytest.approx(high, abs=tolerance), name


def test_classification_intervals_equal_a_loop_that_gathers_every_draw(random_predictions):
    probs, labels = random_predictions(120, 5)
    intervals = bootstrap_classification(
        probs, labels, threshold=0.7, level=0.9, num_draws=NUM_DRAWS, generator=make_generator(3)
    )

    def measure(pick):
        p, y = probs[pick], labels[pick]
        return {
            **to_record(scoring_metrics(p, y)),
            **to_record(calibration_metrics(p, y)),
            **{f"overconfidence_{k}": v for k, v in to_record(overconfidence(p, y, threshold=0.7)).items()},
            "balanced_accuracy": balanced_accuracy(p, y),
        }  # fmt: skip

    _assert_percentiles(
        intervals, [measure(p) for p in _gathered(120, generator=make_generator(3))]
    )
    whole = measure(torch.arange(120))
    assert {name: i.value for name, i in intervals.items()} == pytest.approx(
        {name: whole[name] for name in intervals}
    )
    assert len(intervals) == 11


def test_intervals_of_means_equal_a_loop_that_gathers_every_draw(random_scores):
    inside, outside = random_scores(80, 80)
    values = {"inside": inside, "outside": outside}
    intervals = bootstrap_means(values, level=0.9, num_draws=NUM_DRAWS, generator=make_generator(6))
    draws = [
        {name: float(column[pick].mean()) for name, column in values.items()}
        for pick in _gathered(80, generator=make_generator(6))
    ]
    _assert_percentiles(intervals, draws)
    assert {name: i.value for name, i in intervals.items()} == pytest.approx(
        {name: float(column.mean()) for name, column in values.items()}
    )
    assert list(intervals) == ["inside", "outside"]
    assert bootstrap_means({}, generator=make_generator(6)) == {}


@pytest.mark.parametrize("decimals", [15, 1])
def test_selective_intervals_equal_a_loop_that_gathers_every_draw(random_predictions, decimals):
    probs, labels = random_predictions(75, 3)
    uncertainty = (1 - probs.amax(1)).round(decimals=decimals)
    intervals = bootstrap_selective(
        uncertainty, probs, labels, coverages=(0.5, 0.9), level=0.9, num_draws=NUM_DRAWS,
        generator=make_generator(4),
    )  # fmt: skip

    def measure(pick):
        result = selective_metrics(
            uncertainty[pick], probs[pick], labels[pick], coverages=(0.5, 0.9)
        )
        return {"aurc": result.aurc, "accuracy_at_0.5": result.accuracies[0],
                "accuracy_at_0.9": result.accuracies[1]}  # fmt: skip

    assert list(intervals) == ["aurc", "accuracy_at_0.5", "accuracy_at_0.9"]
    _assert_percentiles(intervals, [measure(p) for p in _gathered(75, generator=make_generator(4))])


@pytest.mark.parametrize("decimals", [15, 1])
def test_detection_intervals_equal_a_loop_that_gathers_every_draw(random_scores, decimals):
    inside, outside = random_scores(90, 60, decimals=decimals)
    intervals = bootstrap_detection(
        inside, outside, level=0.9, num_draws=NUM_DRAWS, generator=make_generator(5)
    )
    generator = make_generator(5)
    picks = zip(_gathered(90, generator=generator), _gathered(60, generator=generator), strict=True)
    draws = [to_record(detection_metrics(inside[i], outside[o])) for i, o in picks]
    assert len(intervals) == 5
    # Ratios of counts are taken in float32 there.
    _assert_percentiles(intervals, draws, tolerance=2e-7)


def test_differences_of_two_models_equal_a_loop_that_gathers_the_same_draws_for_both(
    random_predictions,
):
    probs, labels = random_predictions(90, 4)
    others, _ = random_predictions(90, 4, seed=1)
    ours, theirs = (classification_measure(p, labels, num_bins=15, threshold=0.7) for p in (probs, others))  # fmt: skip
    found = bootstrap_differences(
        ours, theirs, level=0.9, num_draws=NUM_DRAWS, generator=make_generator(8)
    )[""]

    names = {"accuracy", "nll", "brier", "ece_equal_width"}

    def measure(pick):
        left, right = (
            {**to_record(scoring_metrics(p[pick], labels[pick])), **to_record(calibration_metrics(p[pick], labels[pick]))}
            for p in (probs, others)
        )  # fmt: skip
        return {name: left[name] - right[name] for name in names}

    kept = {name: found[name] for name in names}
    _assert_percentiles(kept, [measure(p) for p in _gathered(90, generator=make_generator(8))])
    whole = measure(torch.arange(90))
    assert {name: i.value for name, i in kept.items()} == pytest.approx({n: whole[n] for n in names})  # fmt: skip


def test_differences_in_detection_resample_known_and_unknown_each_by_itself(random_scores):
    inside, outside = random_scores(70, 50)
    other_inside, other_outside = inside.flip(0), (outside + 0.2)
    found = bootstrap_differences(
        detection_measure({"a": inside}, {"a": outside}),
        detection_measure({"a": other_inside}, {"a": other_outside}),
        level=0.9,
        num_draws=NUM_DRAWS,
        generator=make_generator(5),
    )["a"]
    generator = make_generator(5)
    picks = zip(_gathered(70, generator=generator), _gathered(50, generator=generator), strict=True)
    draws = []
    for i, o in picks:
        left = to_record(detection_metrics(inside[i], outside[o]))
        right = to_record(detection_metrics(other_inside[i], other_outside[o]))
        draws.append({name: left[name] - right[name] for name in found})
    assert len(found) == 5
    _assert_percentiles(found, draws, tolerance=4e-7)


def test_a_model_differs_from_itself_by_nothing_in_every_draw_and_pairing_narrows_the_interval(
    random_scores,
):
    hard, noise = random_scores(400, 400)
    one = mean_measure({"loss": hard})
    (same,) = bootstrap_differences(one, one, generator=make_generator(0))[""].values()
    assert (same.value, same.low, same.high) == (0, 0, 0)
    near = mean_measure({"loss": hard + 0.01 * noise})
    (paired,) = bootstrap_differences(one, near, generator=make_generator(0))[""].values()
    alone = bootstrap_means({"loss": hard}, generator=make_generator(0))["loss"]
    assert paired.high - paired.low < 0.1 * (alone.high - alone.low)


def test_figures_on_other_samples_cannot_be_paired():
    ours, theirs = mean_measure({"a": torch.rand(5)}), mean_measure({"a": torch.rand(6)})
    with pytest.raises(ConfigError, match=r"\(5,\) and \(6,\) samples; only figures on the same"):
        bootstrap_differences(ours, theirs, generator=make_generator(0))


def test_scores_that_share_their_draws_each_get_what_they_get_alone(random_predictions):
    probs, labels = random_predictions(75, 3)
    scores = {"msp": 1 - probs.amax(1), "rough": (1 - probs.amax(1)).round(decimals=1)}
    outside = {name: 1.1 - values[:50] for name, values in scores.items()}
    few = {"num_draws": NUM_DRAWS}
    ranked = bootstrap_selective_scores(scores, probs, labels, generator=make_generator(4), **few)
    found = bootstrap_detection_scores(scores, outside, generator=make_generator(5), **few)
    assert list(ranked) == list(found) == ["msp", "rough"]
    for name, values in scores.items():
        assert ranked[name] == bootstrap_selective(
            values, probs, labels, generator=make_generator(4), **few
        )
        assert found[name] == bootstrap_detection(
            values, outside[name], generator=make_generator(5), **few
        )
    assert ranked["msp"] != ranked["rough"]


def test_scores_of_sets_of_different_sizes_share_no_draws():
    inside = {"a": torch.rand(5), "b": torch.rand(6)}
    outside = {"a": torch.rand(5), "b": torch.rand(5)}
    with pytest.raises(ConfigError, match="different sizes"):
        bootstrap_detection_scores(inside, outside, generator=make_generator(0))


def test_a_set_whose_sums_float32_cannot_hold_is_counted_in_float64(monkeypatch):
    monkeypatch.setattr(resampling, "MOST_IN_FLOAT32", 9)
    assert draw_counts(2, 9, generator=make_generator(0)).dtype == torch.float32
    assert draw_counts(2, 10, generator=make_generator(0)).dtype == torch.float64


def test_intervals_do_not_depend_on_how_many_draws_are_held_at_once(
    random_predictions, monkeypatch
):
    probs, labels = random_predictions(50, 3)

    def run():
        return bootstrap_classification(probs, labels, num_draws=30, generator=make_generator(0))

    at_once = run()
    monkeypatch.setattr(bootstrap_file, "COUNTS_AT_A_TIME", 50 * 7)
    assert {n: (i.low, i.high) for n, i in run().items()} == {
        n: pytest.approx((i.low, i.high), abs=1e-12) for n, i in at_once.items()
    }


def test_a_block_of_draws_is_held_for_both_sets_together(random_scores, monkeypatch):
    blocks = []

    def spy(num_draws, num_samples, *, generator):
        blocks.append((num_draws, num_samples))
        return draw_counts(num_draws, num_samples, generator=generator)

    monkeypatch.setattr(bootstrap_file, "draw_counts", spy)
    monkeypatch.setattr(bootstrap_file, "COUNTS_AT_A_TIME", 50 * 7)
    bootstrap_detection(*random_scores(5, 45), num_draws=30, generator=make_generator(0))
    assert blocks == [(size, samples) for size in (7, 7, 7, 7, 2) for samples in (5, 45)]


def test_predictions_are_placed_in_bins_once_however_many_blocks_the_draws_come_in(
    random_predictions, monkeypatch
):
    probs, labels = random_predictions(50, 70)
    placed = []

    def spy(values, num_bins):
        placed.append(tuple(values.shape))
        return equal_width_bins(values, num_bins)

    equal_width_bins = calibration_file.equal_width_bins
    monkeypatch.setattr(calibration_file, "equal_width_bins", spy)
    monkeypatch.setattr(bootstrap_file, "COUNTS_AT_A_TIME", 50 * 7)
    bootstrap_classification(probs, labels, num_draws=30, generator=make_generator(0))
    # The confidence, and the probabilities of all classes.
    assert placed == [(50, 1), (50, 70)]


def test_the_interval_of_the_mean_has_the_width_that_theory_gives():
    generator = make_generator(1)
    labels = (torch.rand(4000, generator=generator) < 0.3).long()
    probs = torch.tensor([[0.9, 0.1]], dtype=torch.float64).repeat(4000, 1)
    interval = bootstrap_classification(probs, labels, generator=generator)["accuracy"]
    expected = 2 * 1.96 * math.sqrt(0.3 * 0.7 / 4000)
    assert interval.high - interval.low == pytest.approx(expected, rel=0.12)
    assert interval.low < interval.value < interval.high


def test_a_metric_that_the_data_leave_undefined_has_no_interval():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    intervals = bootstrap_classification(
        probs, torch.tensor([0, 1]), num_draws=10, generator=make_generator(0)
    )
    assert "overconfidence_mean_confidence_when_wrong" not in intervals
    assert intervals["accuracy"].low == intervals["accuracy"].high == 1


def test_a_draw_that_leaves_a_metric_undefined_does_not_count_in_its_interval():
    # Two of eight are wrong, with confidences of 0.9 and 0.7: about a tenth of the draws hold neither.
    probs = torch.tensor([[0.9, 0.1], [0.7, 0.3]] + [[0.1, 0.9]] * 6, dtype=torch.float64)
    intervals = bootstrap_classification(
        probs,
        torch.ones(8, dtype=torch.int64),
        num_draws=500,
        level=0.9,
        generator=make_generator(0),
    )
    interval = intervals["overconfidence_mean_confidence_when_wrong"]
    assert (interval.low, interval.high) == pytest.approx((0.7, 0.9))


def test_a_thousand_draws_of_every_metric_over_ten_thousand_samples_fit_ten_seconds_of_two_cores(
    random_predictions,
):
    probs, labels = random_predictions(10_000, 10)
    outside, _ = random_predictions(10_000, 10, seed=1)
    uncertainty, outside = 1 - probs.amax(1), 1.1 - outside.amax(1)
    generator = make_generator(0)
    start = time.process_time()
    bootstrap_classification(probs, labels, generator=generator)
    bootstrap_means({"logit_norm": probs.log().norm(dim=1)}, generator=generator)
    bootstrap_selective(uncertainty, probs, labels, generator=generator)
    bootstrap_detection(uncertainty, outside, generator=generator)
    # Processor time over all threads: a busy machine must not fail the test.
    assert time.process_time() - start < 2 * 10


def test_the_interval_over_seeds_equals_scipys_t_interval():
    values = [0.91, 0.93, 0.905, 0.94]
    result = seed_interval(values, level=0.9)
    low, high = stats.t.interval(0.9, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert (result.low, result.high) == pytest.approx((low, high))
    assert result.mean == pytest.approx(0.92125)
    assert result.num_seeds == 4


def test_one_seed_has_a_mean_and_no_interval():
    result = seed_interval([0.5])
    assert (result.mean, result.std, result.low, result.high) == (0.5, None, None, None)


def test_draws_levels_and_seeds_that_make_no_interval_are_refused(random_predictions):
    probs, labels = random_predictions(5, 3)
    with pytest.raises(ConfigError, match="num_draws"):
        bootstrap_classification(probs, labels, num_draws=0, generator=make_generator(0))
    with pytest.raises(ConfigError, match="level"):
        bootstrap_classification(probs, labels, level=95.0, generator=make_generator(0))
    with pytest.raises(ConfigError, match="4 samples but there are 5"):
        bootstrap_selective(torch.zeros(4), probs, labels, generator=make_generator(0))
    with pytest.raises(ConfigError, match="different sizes"):
        bootstrap_means({"a": torch.zeros(4), "b": torch.zeros(5)}, generator=make_generator(0))
    with pytest.raises(ConfigError, match="at least one"):
        seed_interval([])


def test_scores_of_one_side_alone_are_refused():
    with pytest.raises(ConfigError, match="has the scores entropy and ood_scores energy"):
        bootstrap_detection_scores(
            {"entropy": torch.zeros(3)}, {"energy": torch.zeros(3)}, generator=torch.Generator()
        )


def test_a_figure_that_no_draw_has_is_left_out_and_not_given_as_no_number() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])  # one is wrong, which a draw of one sample set may lack
    found = [
        bootstrap_classification(probs, labels, generator=make_generator(seed), num_draws=1)
        for seed in range(20)
    ]
    name = "overconfidence_mean_confidence_when_wrong"
    assert any(name in intervals for intervals in found)
    assert any(name not in intervals for intervals in found)
    for intervals in found:
        for interval in intervals.values():
            assert math.isfinite(interval.low)
            assert math.isfinite(interval.high)
