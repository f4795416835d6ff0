import dataclasses
import json
import shutil

import pytest
from scipy import stats

from lrformer.core import ConfigError, from_record, to_record
from lrformer.evaluation import EvaluationConfig, SeedScores, evaluate, over_seeds
from lrformer.evaluation.seeds import check_seeds_of_one
from tests.evaluation.made_run import write_image_folder, write_run
from tests.evaluation.test_evaluate import FEW, _set


def test_mean_deviation_and_interval_over_runs_equal_scipys():
    runs = [evaluate(_set(seed), ood={"far": _set(9, labeled=False)}, config=FEW) for seed in (0, 1, 2)]  # fmt: skip
    over = over_seeds(runs, level=0.9)
    metric = over.select(dataset="far", score="entropy")["auroc"]
    values = [run("auroc", dataset="far") for run in runs]
    assert metric.values == tuple(values)
    assert metric.mean == pytest.approx(sum(values) / 3)
    low, high = stats.t.interval(0.9, 2, loc=metric.mean, scale=stats.sem(values))
    assert (metric.low, metric.high) == pytest.approx((low, high))
    assert metric.std == pytest.approx(stats.tstd(values))
    assert len(over.metrics) == len(runs[0].metrics)
    assert from_record(SeedScores, json.loads(json.dumps(to_record(over)))) == over


def test_a_metric_that_one_run_lacks_is_left_out_and_named():
    first, second = evaluate(_set(0), config=FEW), evaluate(_set(1), config=FEW)
    kept = tuple(m for m in second.metrics if m.name != "overconfidence_rate_when_wrong")
    over = over_seeds([first, dataclasses.replace(second, metrics=kept)])
    assert over.left_out == ("test/overconfidence_rate_when_wrong",)
    assert "overconfidence_rate_when_wrong" not in over.select(dataset="test")


def test_one_run_has_a_mean_and_no_interval():
    metric = over_seeds([evaluate(_set(0), config=FEW)]).select(dataset="test")["accuracy"]
    assert (metric.std, metric.low, metric.high) == (None, None, None)


def test_runs_that_were_evaluated_differently_are_not_averaged():
    first = evaluate(_set(0), config=FEW)
    with pytest.raises(ConfigError, match="run 2 was evaluated with other config"):
        over_seeds([first, evaluate(_set(1), config=EvaluationConfig(num_draws=20, num_bins=5))])
    with pytest.raises(ConfigError, match="run 2 was evaluated with other sets"):
        over_seeds([first, evaluate(_set(1), ood={"far": _set(2)}, config=FEW)])
    with pytest.raises(ConfigError, match="empty"):
        over_seeds([])


def test_seeds_may_differ_in_what_follows_from_them_and_in_places(tmp_path):
    write_run(tmp_path / "first", write_image_folder(tmp_path / "data"), root=tmp_path / "cache")
    for name, changes in (
        ("second", {"train": {"seed": 1, "data": "elsewhere"}, "mean": [0.1, 0.2, 0.3]}),
        ("third", {"train": {"seed": 2, "start": "vit_tiny_patch16_224"}}),
    ):
        shutil.copytree(tmp_path / "first", tmp_path / name)
        path = tmp_path / name / "config.json"
        record = json.loads(path.read_text())
        record["config"]["train"] |= changes.pop("train")
        record["config"] |= changes
        path.write_text(json.dumps(record))
    check_seeds_of_one([tmp_path / "first", tmp_path / "second"])
    with pytest.raises(ConfigError, match="start is 'vit_tiny_patch16_224' there"):
        check_seeds_of_one([tmp_path / "first", tmp_path / "third"])
