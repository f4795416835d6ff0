import math
import time

import pytest
import torch
from scipy import stats

from lrformer.core import ConfigError, make_generator, to_record
from lrformer.metrics import bootstrap as bootstrap_file
from lrformer.metrics import (
    bootstrap_classification,
    bootstrap_detection,
    bootstrap_selective,
    calibration_metrics,
    detection_metrics,
    logit_norms,
    overconfidence,
    scoring_metrics,
    seed_interval,
    selective_metrics,
)
from lrformer.metrics.resampling import draw_counts

NUM_DRAWS = 40


def _gathered(num_samples, *, generator):
    """Return for every draw the samples that it holds, one index for each."""
    counts = draw_counts(NUM_DRAWS, num_samples, generator=generator).long()
    assert (counts.sum(dim=1) == num_samples).all()
    return [torch.repeat_interleave(torch.arange(num_samples), row) for row in counts]


def _assert_percentiles(intervals, draws):
    for name, interval in intervals.items():
        values = torch.tensor([draw[name] for draw in draws], dtype=torch.float64)
        tails = torch.tensor([0.05, 0.95], dtype=torch.float64)
        low, high = values.nanquantile(tails).tolist()
        assert interval.low == pytest.approx(low, abs=1e-11), name
        assert interval.high == pytest.approx(high, abs=1e-11), name


def test_classification_intervals_equal_a_loop_that_gathers_every_draw(random_predictions):
    probs, labels = random_predictions(120, 5)
    logits = probs.log()
    intervals = bootstrap_classification(
        probs, labels, logits=logits, threshold=0.7, level=0.9, num_draws=NUM_DRAWS,
        generator=make_generator(3),
    )  # fmt: skip

    def measure(pick):
        p, y = probs[pick], labels[pick]
        return {
            **to_record(scoring_metrics(p, y)),
            **to_record(calibration_metrics(p, y)),
            **{f"overconfidence_{k}": v for k, v in to_record(overconfidence(p, y, threshold=0.7)).items()},
            "logit_norm": logit_norms(logits[pick]).mean,
        }  # fmt: skip

    _assert_percentiles(
        intervals, [measure(p) for p in _gathered(120, generator=make_generator(3))]
    )
    whole = measure(torch.arange(120))
    assert {name: i.value for name, i in intervals.items()} == pytest.approx(
        {name: whole[name] for name in intervals}
    )
    assert len(intervals) == 11


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
    _assert_percentiles(intervals, draws)


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


def test_a_thousand_draws_of_every_metric_over_ten_thousand_samples_fit_ten_seconds_of_two_cores(
    random_predictions,
):
    probs, labels = random_predictions(10_000, 10)
    outside, _ = random_predictions(10_000, 10, seed=1)
    uncertainty, outside = 1 - probs.amax(1), 1.1 - outside.amax(1)
    generator = make_generator(0)
    start = time.process_time()
    bootstrap_classification(probs, labels, logits=probs.log(), generator=generator)
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
    with pytest.raises(ConfigError, match="at least one"):
        seed_interval([])
