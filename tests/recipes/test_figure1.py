import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from lrformer.core import ConfigError
from lrformer.recipes import figure1
from lrformer.recipes.contenders import CONTENDERS
from lrformer.recipes.figure1 import Figure1Config, choose, reproduce_figure1
from lrformer.recipes.moons import (
    EXTENT,
    distance_awareness,
    draw_moons,
    grid_points,
    hold_out,
    synthetic_outliers,
)
from lrformer.recipes.moons_run import MoonsResult, MoonsRun, load_maps, run_moons
from lrformer.recipes.point_training import PointTraining, fit_points
from lrformer.training.atomic_files import read_json

TINY = Figure1Config(
    methods=("deterministic", "lrformer"),
    num_seeds=2,
    training=PointTraining(epochs=1, batch_size=50),
    num_points=100,
    grid_shape=(9, 11),
)


def made_result(run, accuracy, awareness) -> MoonsResult:
    return MoonsResult(
        run=run,
        contender={},
        accuracy=accuracy,
        nll=0.0,
        awareness=awareness,
        by_score={},
        loss=0.0,
        seconds=0.0,
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("figure1")
    seen: list[tuple[int, int]] = []
    rows = reproduce_figure1(out, TINY, num_workers=0, show=lambda *s: seen.append(s))
    return out, rows, seen


def test_the_figures_of_a_hand_made_uncertainty_are_those_of_sklearn_and_scipy():
    generator = np.random.default_rng(0)
    distance = generator.uniform(0, 3, 200)
    known, elsewhere = generator.normal(0, 1, 50), distance + generator.normal(0, 1, 200)
    found = distance_awareness(known, elsewhere, distance)
    far = elsewhere[distance > 0.5]
    truth = np.r_[np.zeros(50), np.ones(len(far))]
    assert found.auroc == pytest.approx(roc_auc_score(truth, np.r_[known, far]))
    assert found.rank_correlation == pytest.approx(spearmanr(elsewhere, distance).statistic)


def test_the_distance_itself_is_the_perfect_uncertainty_and_its_negative_the_worst():
    distance = np.linspace(0, 3, 40)
    best = distance_awareness(np.zeros(10), distance, distance)
    worst = distance_awareness(np.zeros(10), -distance, distance)
    assert (best.auroc, best.rank_correlation) == (1.0, pytest.approx(1.0))
    assert (worst.auroc, worst.rank_correlation) == (0.0, pytest.approx(-1.0))


def test_a_constant_uncertainty_knows_nothing():
    found = distance_awareness(np.ones(10), np.ones(40), np.linspace(0, 3, 40))
    assert (found.auroc, found.rank_correlation) == (0.5, 0.0)


def test_a_far_that_no_point_reaches_is_refused():
    with pytest.raises(ConfigError, match=r"far \(9\.0\)"):
        distance_awareness(np.ones(10), np.ones(4), np.ones(4), far=9.0)


def test_the_grid_covers_the_plane_from_corner_to_corner():
    grid = grid_points()
    assert np.allclose(grid[0], (EXTENT[0], EXTENT[2]))
    assert np.allclose(grid[-1], (EXTENT[1], EXTENT[3]))
    assert np.allclose(grid[1] - grid[0], (0.1, 0), atol=1e-6)


def test_distances_are_those_of_a_search_through_all_pairs():
    moons = draw_moons(0, num_points=60)
    points = grid_points((5, 6))
    slow = np.linalg.norm(points[:, None] - moons.train_x[None], axis=-1).min(axis=1)
    assert np.allclose(moons.distance(points), slow)


def test_one_scale_serves_both_coordinates_so_that_angles_stay():
    moons = draw_moons(3, num_points=200)
    x = moons.standardize(moons.train_x)
    assert torch.allclose(x.mean(dim=0), torch.zeros(2), atol=1e-5)
    assert float(x.square().mean()) == pytest.approx(1.0, abs=1e-5)
    ratio = x.std(dim=0) / torch.from_numpy(moons.train_x).std(dim=0)
    assert float(ratio[0]) == pytest.approx(float(ratio[1]), rel=1e-5)


def test_tuning_sees_neither_test_points_nor_points_on_the_moons():
    moons = draw_moons(0, num_points=200)
    held = hold_out(moons, seed=0)
    train = {tuple(point) for point in moons.train_x.tolist()}
    parts = [{tuple(p) for p in part.tolist()} for part in (held.train_x, held.test_x)]
    assert parts[0] | parts[1] == train
    assert not parts[0] & parts[1]
    outliers = synthetic_outliers(held, seed=0)
    pairs = np.linalg.norm(held.train_x[:, None] - held.train_x[None], axis=-1)
    np.fill_diagonal(pairs, np.inf)
    assert held.distance(outliers).min() > pairs.min(axis=1).max()
    assert len(outliers) > 50


def test_tuning_takes_accuracy_first_and_then_the_sum_of_both_figures():
    def result(value, accuracy, auroc, correlation):
        run = MoonsRun(contender="sngp", value=value, seed=0, is_tuning=True)
        awareness = distance_awareness(np.zeros(2), np.ones(2), np.ones(2))
        awareness = dataclasses.replace(awareness, auroc=auroc, rank_correlation=correlation)
        return made_result(run, accuracy, awareness)

    tried = [result(0.5, 0.9, 1.0, 1.0), result(2.0, 1.0, 0.8, 0.5), result(8.0, 1.0, 0.7, 0.7)]
    assert choose("sngp", tried) == 8.0


def test_an_ensemble_is_tuned_as_its_members():
    run = MoonsRun(contender="deterministic", value=0.01, seed=0, is_tuning=True)
    awareness = distance_awareness(np.zeros(2), np.ones(2), np.ones(2))
    assert choose("deep_ensemble", [made_result(run, 1.0, awareness)]) == 0.01


@pytest.mark.parametrize("name", list(CONTENDERS))
def test_every_contender_learns_from_a_few_points_and_gives_its_score(name, tmp_path):
    config = dataclasses.replace(TINY, methods=(name,), num_seeds=1)
    contender = CONTENDERS[name]
    run = config.run(name, contender.default, 0)
    result = run_moons(run, tmp_path)
    assert contender.score in result.by_score
    uncertainty, probability = load_maps(run, tmp_path)
    assert uncertainty.shape == probability.shape == (9, 11)
    assert 0 <= probability.min() <= probability.max() <= 1
    # The figures in the result are those of the map that is drawn.
    moons = draw_moons(0, num_points=100)
    distance = moons.distance(grid_points((9, 11)))
    correlation = spearmanr(uncertainty.ravel(), distance).statistic
    assert result.awareness.rank_correlation == pytest.approx(correlation, abs=1e-3)


def test_the_rows_are_means_over_the_runs_and_the_record_holds_them(tiny):
    out, rows, _ = tiny
    record = read_json(out / "figure1.json")
    assert [row["contender"] for row in record["rows"]] == ["deterministic", "lrformer"]
    for row, written in zip(rows, record["rows"], strict=True):
        values = [result.awareness.auroc for result in row.results]
        assert [result.run.seed for result in row.results] == [0, 1]
        assert written["auroc"]["mean"] == pytest.approx(np.mean(values))
        assert row.auroc.mean == pytest.approx(np.mean(values))
    assert len(record["tuning"]["tried"]) == 6
    for picture in ("figure1.png", "figure1.svg"):
        assert (out / picture).stat().st_size > 10_000


def test_the_progress_ends_at_the_number_of_all_epochs(tiny):
    _, _, seen = tiny
    assert seen[-1] == (10, 10)


def test_finished_pairs_are_kept_and_only_missing_ones_run_again(tiny, monkeypatch):
    out, rows, _ = tiny
    started = []
    monkeypatch.setattr(
        figure1, "run_moons", lambda run, folder: (started.append(run.name), run_moons(run, folder))
    )
    missing = out / "runs" / "lrformer-seed-1.json"
    before = (out / "runs" / "lrformer-seed-0.json").read_bytes()
    missing.unlink()
    again = reproduce_figure1(out, TINY, num_workers=0)
    assert started == ["lrformer-seed-1"]
    assert (out / "runs" / "lrformer-seed-0.json").read_bytes() == before
    assert again[1].auroc == rows[1].auroc


def test_a_folder_with_runs_of_other_settings_is_refused(tiny):
    out, _, _ = tiny
    other = dataclasses.replace(TINY, training=PointTraining(epochs=2, batch_size=50))
    with pytest.raises(ConfigError, match="other settings"):
        reproduce_figure1(out, other, num_workers=0)


def test_a_run_of_a_contender_that_was_defined_otherwise_is_refused(tiny, monkeypatch):
    out, rows, _ = tiny
    changed = dataclasses.replace(CONTENDERS["lrformer"], method_overrides={"ridge": 1.0})
    monkeypatch.setitem(CONTENDERS._entries, "lrformer", changed)
    with pytest.raises(ConfigError, match="other settings"):
        run_moons(rows[1].results[0].run, out / "runs")


def test_a_wrong_method_gets_the_nearest_right_name():
    with pytest.raises(ConfigError, match="Did you mean 'lrformer'"):
        Figure1Config(methods=("lrfromer",))
    with pytest.raises(ConfigError, match="each once"):
        Figure1Config(methods=("sngp", "sngp"))


def test_the_learning_rate_rises_for_a_tenth_of_the_steps_and_falls_to_zero():
    config = PointTraining(lr=1.0)
    rates = [config.learning_rate(step, 100) for step in range(100)]
    assert np.argmax(rates) in (9, 10)
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] < 0.001


def test_training_lowers_the_loss_on_separable_points():
    moons = draw_moons(0, num_points=200)
    x, y = moons.standardize(moons.train_x), torch.from_numpy(moons.train_y)
    method = CONTENDERS["deterministic"].create(1e-4)
    loss = fit_points(
        method,
        x,
        y,
        PointTraining(epochs=6, batch_size=25),
        generator=torch.Generator().manual_seed(0),
    )
    assert loss < 0.35


def test_due_on_points_starts_as_its_reference_does() -> None:
    assert CONTENDERS["due"].method_overrides["initial_posterior"] == "prior"
