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


def change(folder, copy, *, train=None, **changes):
    """Make `copy` of the run in `folder` with another config."""
    shutil.copytree(folder, copy)
    record = json.loads((copy / "config.json").read_text())
    record["config"]["train"] |= train or {}
    record["config"] |= changes
    (copy / "config.json").write_text(json.dumps(record))
    return copy


@pytest.fixture
def first(tmp_path):
    data = write_image_folder(tmp_path / "data")
    write_run(tmp_path / "plain", data, root=tmp_path / "cache")
    return change(tmp_path / "plain", tmp_path / "first", data_digest="of these images")


def test_seeds_may_differ_in_what_follows_from_them_and_in_places(first, tmp_path):
    train = {"seed": 1, "data": "elsewhere"}
    second = change(first, tmp_path / "second", train=train, mean=[0.1, 0.2, 0.3])
    older = change(first, tmp_path / "older", train={"seed": 2}, data_digest=None)
    check_seeds_of_one([first, second, older])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"seed": 1, "start": "vit_tiny_patch16_224"}}, "start is 'vit_tiny_patch16_224' in"),
        ({"train": {"seed": 1}, "data_digest": "of others"}, "data_digest is 'of others' in"),
        ({"train": {"seed": 1}, "img_size": 99}, "img_size is 99 in"),
        ({"train": {"seed": 0}}, "has the seed of"),
    ],
)  # fmt: skip
def test_what_is_no_seed_of_an_experiment_is_not_averaged_with_it(
    first, tmp_path, changes, message
):
    other = change(first, tmp_path / "other", **changes)
    with pytest.raises(ConfigError, match=message):
        check_seeds_of_one([first, other])


def test_models_of_other_sizes_are_no_seeds_of_one_experiment(first, tmp_path):
    other = change(first, tmp_path / "other", train={"seed": 1})
    record = json.loads((other / "config.json").read_text())
    record["config"]["backbone"]["model"]["config"]["depth"] = 7
    (other / "config.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"backbone\.model\.config\.depth is 7 in"):
        check_seeds_of_one([first, other])
