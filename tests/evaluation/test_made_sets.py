import numpy as np
import pytest

from lrformer.core import ConfigError
from lrformer.data import load_dataset
from lrformer.data.outliers import OUTLIER_KINDS, make_outliers
from lrformer.evaluation import (
    EvaluationConfig,
    Results,
    evaluate,
    evaluate_run,
    load_test_split,
    predict_run,
)
from lrformer.evaluation.made_sets import made_sets
from lrformer.evaluation.run_data import check_unknown
from lrformer.evaluation.sentences import operating_point
from lrformer.reports import render_report
from tests.evaluation.made_run import write_images

FEW = EvaluationConfig(num_draws=5)
NAMES = ["made-shuffled", "made-mixed", "made-inverted", "made-noise"]


@pytest.fixture(scope="module")
def results(workspace):
    gray = f"{workspace / 'data'}:ood-gray"
    return evaluate_run(workspace / "run", ood=["made", gray], config=FEW, device="cpu")


def test_made_sets_are_measured_like_unknown_ones_and_never_counted_among_them(results, run):
    scores = results.scores
    assert [entry.name for entry in scores.of_role("made")] == NAMES
    assert [entry.name for entry in scores.of_role("ood")] == ["ood-gray"] == list(results.ood)
    assert {entry.num_samples for entry in scores.of_role("made")} == {42}
    test = load_test_split(run.config)
    mixed = predict_run(run, make_outliers(test, "mixed"), name="made-mixed", is_labeled=False)
    alone = evaluate(results.test, made={"made-mixed": mixed}, rule=run.rule, config=FEW)
    for score in scores.given_scores:
        given = {"dataset": "made-mixed", "score": score}
        assert scores.select(**given) == alone.select(**given)
    assert "were made" in scores.conventions["made"]


def test_they_are_not_taken_by_themselves(run):
    scores = evaluate_run(run, config=FEW, device="cpu").scores
    assert scores.of_role("made") == []
    assert "made" not in scores.conventions


def test_the_report_keeps_them_apart_and_calls_them_made(results):
    text = render_report(results, title="pets")
    unknown, made = (
        text.partition(f'<section id="{name}">')[2].partition("</section>")[0]
        for name in ("unknown", "made")
    )
    assert "made-" not in unknown
    assert "ood-gray" not in made
    assert all(name in made for name in NAMES)
    assert "no real unknown data" in made
    tiles = text.partition('class="tiles"')[2].partition("<ul")[0]
    assert "made-" not in tiles
    assert "Surest of the made: made-noise" in text
    said = operating_point(results.scores)
    known, _, last = said.partition("; of images that were made, ")
    assert "made-" not in known
    assert all(name in last for name in NAMES)


def test_results_with_made_sets_come_back_from_their_folder(results, tmp_path):
    back = Results.load(results.save(tmp_path))
    assert back.scores == results.scores
    assert list(back.ood) == ["ood-gray"]
    assert render_report(back, title="x") == render_report(results, title="x")


def test_each_set_is_made_anew_and_alike(run):
    test = load_test_split(run.config)
    for make in made_sets(test).values():
        made, again = make(), make()
        assert np.array_equal(made.x, again.x)
        assert made.x.shape == test.x.shape
        assert (np.asarray(made.x) != np.asarray(test.x)).any(axis=(1, 2, 3)).all()
    assert len(made_sets(test)) == len(OUTLIER_KINDS) + 1


def test_points_and_a_folder_of_the_same_name_are_refused_before_anything_is_predicted(
    run, tmp_path
):
    with pytest.raises(ConfigError, match=r"holds points, not images; 'made' outliers.*\(--ood\)"):
        made_sets(load_dataset("two_moons", split="test"))
    write_images(tmp_path / "made-noise", (1, 2, 3), 2, seed=0)
    counted = []
    with pytest.raises(ConfigError, match="two OOD sets are named 'made-noise'"):
        evaluate_run(run, ood=["made", str(tmp_path / "made-noise")], advance=counted.append)
    assert counted == []
    with pytest.raises(ConfigError, match="made' outliers are no unknown data"):
        check_unknown(run.config.train.data, "made")
