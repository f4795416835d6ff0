import numpy as np
import pytest
from scipy import stats

from lrformer.core import ConfigError
from lrformer.evaluation import Predictions
from lrformer.recipes.comparison import ComparedMetric, compare, verdicts
from lrformer.recipes.demo import METRICS, OURS, PLAIN, DemoConfig, run_demo
from lrformer.recipes.digits_run import digits_figures, run_digits
from lrformer.recipes.point_training import PointTraining
from lrformer.recipes.score_choice import find_outliers
from lrformer.training import load_run
from lrformer.training.atomic_files import read_json

TINY = DemoConfig(
    num_seeds=2,
    epochs=1,
    moons=PointTraining(epochs=1, batch_size=50),
    num_points=100,
    grid_shape=(9, 11),
)
ACCURACY = ComparedMetric(name="accuracy", title="accuracy", is_higher_better=True)
NLL = ComparedMetric(name="nll", title="NLL", is_higher_better=False)
THEIRS = {0: {"accuracy": 0.9, "nll": 0.5}, 1: {"accuracy": 0.8, "nll": 0.4}}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    shown: dict[str, tuple[int, int]] = {}
    measured = run_demo(
        out, TINY, num_workers=0, show=lambda kind, *epochs: shown.__setitem__(kind, epochs)
    )
    return out, measured, shown


def test_the_difference_is_taken_seed_by_seed():
    ours = {0: {"accuracy": 0.92, "nll": 0.5}, 1: {"accuracy": 0.81, "nll": 0.6}}
    row = compare(THEIRS, ours, [ACCURACY])[0]
    low, high = stats.t.interval(0.95, 1, loc=0.015, scale=stats.sem([0.02, 0.01]))
    assert row.difference.mean == pytest.approx(0.015)
    assert (row.difference.low, row.difference.high) == pytest.approx((low, high))


def test_lower_is_better_where_the_metric_says_so_and_a_tie_is_not_ahead():
    ours = {0: {"accuracy": 0.9, "nll": 0.3}, 1: {"accuracy": 0.9, "nll": 0.6}}
    accuracy, nll = compare(THEIRS, ours, [ACCURACY, NLL])
    assert accuracy.seeds_not_ahead == (0,)
    assert nll.seeds_not_ahead == (1,)


def test_the_verdict_names_every_seed_on_which_ours_is_not_ahead():
    ours = {0: {"accuracy": 0.95, "nll": 0.9}, 1: {"accuracy": 0.9, "nll": 0.9}}
    said = verdicts(compare(THEIRS, ours, [ACCURACY, NLL]), ours=OURS)
    assert said == [
        "LRFormer is ahead on every seed (2) in: accuracy.",
        "LRFormer is not ahead in NLL on seeds 0, 1.",
    ]


def test_a_run_goes_on_after_an_interruption_while_its_evaluation_is_written(tmp_path, monkeypatch):
    save = Predictions.save

    def save_and_stop(self, path):
        save(self, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Predictions, "save", save_and_stop)
    config = TINY.digits(PLAIN, 0)
    with pytest.raises(KeyboardInterrupt):
        run_digits(config, tmp_path)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="has not been evaluated"):
        digits_figures(tmp_path, score="entropy")
    run_digits(config, tmp_path)
    assert 0 < digits_figures(tmp_path, score="entropy")["auroc"] < 1


def test_models_with_other_seeds_are_not_compared():
    with pytest.raises(ConfigError, match="same seeds"):
        compare(THEIRS, {0: THEIRS[0]}, [ACCURACY])


def test_the_two_models_differ_in_attention_and_head_only():
    plain, ours = TINY.digits(PLAIN, 1), TINY.digits(OURS, 1)
    assert (plain.method, ours.method) == ("deterministic", "lrformer")
    assert plain.model_overrides == {**ours.model_overrides, "attention": "dot_product"}
    for name in ("data", "classes", "model", "epochs", "batch_size", "optimizer", "seed"):
        assert getattr(plain, name) == getattr(ours, name)


def test_the_table_is_made_from_the_runs(demo):
    out, measured, _ = demo
    record = read_json(out / "demo.json")
    assert [row.metric for row in measured.rows] == list(METRICS)
    for row in measured.rows:
        for model, interval in ((PLAIN, row.theirs), (OURS, row.ours)):
            values = [run[row.metric.name] for run in record["runs"][model].values()]
            assert interval.mean == pytest.approx(np.mean(values))
            assert interval.num_seeds == 2
    # The figures of a run are those that the run's own folder holds.
    for model, folder in ((PLAIN, "plain-transformer"), (OURS, "lrformer")):
        entries = read_json(out / folder / "seed-1" / "metrics.json")["evaluation"]["metrics"]
        (auroc,) = (
            entry["value"]
            for entry in entries
            if (entry["dataset"], entry["score"], entry["name"])
            == ("other-classes", measured.scores[model], "auroc")
        )
        assert record["runs"][model]["1"]["auroc"] == pytest.approx(auroc)


def test_the_score_of_a_model_is_chosen_on_outliers_made_of_its_validation_digits(demo):
    out, measured, _ = demo
    assert read_json(out / "demo.json")["scores"] == measured.scores
    for model, folder in ((PLAIN, "plain-transformer"), (OURS, "lrformer")):
        runs = [load_run(out / folder / f"seed-{seed}") for seed in range(2)]
        found = [find_outliers(run, is_calibrated=True, batch_size=32) for run in runs]
        means = {score: np.mean([list(run[score].values()) for run in found]) for score in found[0]}
        assert means[measured.scores[model]] == max(means.values())


def test_the_runs_know_the_digits_0_to_4_only_and_can_be_loaded(demo):
    out, _, _ = demo
    run = load_run(out / "lrformer" / "seed-0")
    assert run.class_names == ("0", "1", "2", "3", "4")


def test_report_picture_and_record_are_where_the_demo_says(demo):
    _, measured, _ = demo
    assert "<html" in measured.report.read_text()
    assert measured.picture.stat().st_size > 10_000
    assert measured.record.is_file()
    assert [row.contender for row in measured.moons] == ["deterministic", "lrformer"]


def test_the_bars_end_at_their_totals(demo):
    _, _, shown = demo
    assert shown == {PLAIN: (2, 2), OURS: (2, 2), "two moons": (2, 2)}


def test_a_second_call_trains_nothing_again(demo):
    out, measured, _ = demo
    weights = out / "lrformer" / "seed-0" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = run_demo(out, TINY, num_workers=0)
    assert weights.stat().st_mtime_ns == before
    assert again.rows[3] == measured.rows[3]


def test_a_demo_without_seeds_is_refused():
    with pytest.raises(ConfigError, match=r"num_seeds \(0\)"):
        DemoConfig(num_seeds=0)
