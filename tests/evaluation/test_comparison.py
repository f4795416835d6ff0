import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from scipy import stats

from lrformer.core import ConfigError, from_record, to_record
from lrformer.evaluation import (
    Comparison,
    EvaluationConfig,
    Results,
    compare_runs,
    load_scores,
)
from lrformer.evaluation.comparison_figures import Wanted
from lrformer.evaluation.measure import generator_of
from lrformer.evaluation.scores import EvaluatedSet
from lrformer.metrics import accuracy, auroc
from lrformer.metrics.resampling import draw_counts
from tests.evaluation.made_evaluation import FEW, keep_evaluation, made_predictions


@pytest.fixture
def keep(run, tmp_path):
    """Return a function that keeps an evaluation below the test's own folder."""
    return lambda name, **changes: keep_evaluation(tmp_path / name, run.config, **changes)


@pytest.fixture
def pair(keep):
    return keep("lrf", signal=2.5, seed=0), keep("plain", signal=1.0, seed=1)


def test_values_are_those_of_the_evaluations_and_the_difference_is_ours_minus_theirs(pair):
    comparison = compare_runs(*pair, num_draws=20)
    ours, theirs = map(load_scores, pair)
    assert len(comparison.figures) > 20
    for figure in comparison:
        place = {"dataset": figure.dataset, "score": figure.score}
        assert figure.ours == ours(figure.name, **place)
        assert figure.theirs == theirs(figure.name, **place)
        assert figure.difference == pytest.approx(figure.ours - figure.theirs, abs=1e-12)
        assert figure.low <= figure.high


def test_the_interval_is_that_of_the_same_draws_of_the_samples_of_both(pair):
    comparison = compare_runs(*pair, num_draws=50, seed=3, level=0.9)
    config = dataclasses.replace(FEW, num_draws=50, seed=3)
    kept = [Results.load(folder) for folder in pair]
    labels = kept[0].test.labels
    counts = draw_counts(50, 60, generator=generator_of(config, "photos/test", "")).long().numpy()
    draws = []
    for row in counts:
        pick = np.repeat(np.arange(60), row)
        left, right = (float(accuracy(k.test.probs[pick], labels[pick])) for k in kept)
        draws.append(left - right)
    figure = comparison("accuracy")
    assert (figure.low, figure.high) == pytest.approx(tuple(np.quantile(draws, [0.05, 0.95])))
    generator = generator_of(config, "far", "detection")
    inside, outside = (draw_counts(50, size, generator=generator).long().numpy() for size in (60, 40))  # fmt: skip
    draws = []
    for known, unknown in zip(inside, outside, strict=True):
        left, right = (
            float(auroc(np.repeat(k.test.uncertainty(), known), np.repeat(k.ood["far"].uncertainty(), unknown)))
            for k in kept
        )  # fmt: skip
        draws.append(left - right)
    figure = comparison("auroc", dataset="far")
    assert (figure.low, figure.high) == pytest.approx(tuple(np.quantile(draws, [0.05, 0.95])), abs=1e-6)  # fmt: skip


def test_what_is_better_is_said_of_our_side_and_turns_round_with_the_sides(keep):
    good, bad = keep("good", signal=6.0), keep("bad", signal=0.5)
    there, back = compare_runs(good, bad), compare_runs(bad, good)
    found = {(f.dataset, f.name): f for f in there if f.score in (None, "entropy")}
    for name in ("accuracy", "nll", "brier", "aurc"):
        assert found["photos/test", name].verdict == "better", name
    for name in ("auroc", "aupr_ood_positive", "aupr_id_positive", "fpr95_ood_positive", "fpr95_id_positive"):  # fmt: skip
        assert found["far", name].verdict == "better", name
    # Surer of its answers, the better one lets pass less of what it does not know.
    assert found["far", "accepted_at_threshold"].difference < 0
    assert found["far", "accepted_at_threshold"].verdict == "better"
    opposite = {"better": "worse", "worse": "better", "": ""}
    for one, other in zip(there, back, strict=True):
        assert other.verdict == opposite[one.verdict]
        assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "role", "expected"),
    [
        ("accuracy", "id", 1),
        ("nll", "id", -1),
        ("brier", "id", -1),
        ("ece_equal_width", "id", -1),
        ("overconfidence_rate", "id", -1),
        ("overconfidence_rate", "ood", -1),
        ("aurc", "id", -1),
        ("auroc", "ood", 1),
        ("aupr_ood_positive", "ood", 1),
        ("aupr_id_positive", "ood", 1),
        ("fpr95_ood_positive", "ood", -1),
        ("fpr95_id_positive", "ood", -1),
        ("accepted_at_threshold", "id", 1),
        ("accepted_at_threshold", "ood", -1),
        ("accepted_at_threshold", "made", -1),
        ("accepted_at_threshold", "mean", 0),
    ],
)
def test_every_figure_has_its_better_side(name, role, expected):
    entry = EvaluatedSet(name="set", role=role, num_samples=1)
    assert Wanted(entry=entry, name=name).direction == expected


def test_a_twin_differs_in_nothing_and_no_figure_is_marked(keep, tmp_path):
    first = keep("first")
    twin = shutil.copytree(first, tmp_path / "twin")
    for figure in compare_runs(first, twin):
        assert (figure.difference, figure.low, figure.high, figure.verdict) == (0, 0, 0, "")


@pytest.fixture
def experiments(keep, tmp_path):
    """Return two folders of seeds, in which three are common."""
    for seed in (0, 1, 2, 10):
        keep(f"lrf/seed-{seed}", seed=seed, signal=2.0 + 0.2 * seed, method="lrformer")
    for seed in (1, 10, 2, 4):
        keep(f"plain/seed-{seed}", seed=seed, signal=1.0)
    return tmp_path / "lrf", tmp_path / "plain"


def test_over_seeds_the_interval_is_that_of_a_paired_t_test_of_the_common_ones(experiments):
    comparison = compare_runs(*experiments, level=0.9)
    assert comparison.seeds == (1, 2, 10)
    assert comparison.num_draws is None
    for name, dataset in (("nll", None), ("auroc", "far"), ("accepted_at_threshold", "far")):
        ours, theirs = (
            [load_scores(place / f"seed-{seed}")(name, dataset=dataset) for seed in (1, 2, 10)]
            for place in experiments
        )
        figure = comparison(name, dataset=dataset)
        expected = stats.ttest_rel(ours, theirs).confidence_interval(0.9)
        assert (figure.low, figure.high) == pytest.approx((expected.low, expected.high))
        assert figure.ours == pytest.approx(np.mean(ours))
        assert figure.theirs == pytest.approx(np.mean(theirs))
        assert figure.differences == pytest.approx(np.subtract(ours, theirs))
    text = str(comparison)
    assert (
        "Student's t (90%) of the differences seed by seed over 3 common seeds (1, 2, 10)" in text
    )
    assert f"Note: Seed 0 of {experiments[0]} left out" in text
    assert f"Note: Seed 4 of {experiments[1]} left out" in text


def test_seeds_may_be_named_one_by_one_in_any_order(experiments):
    lrf, plain = experiments
    named = [lrf / "seed-10", lrf / "seed-1", lrf / "seed-2"]
    assert compare_runs(named, plain).figures == compare_runs(lrf, plain).figures


def test_what_differs_by_the_same_in_every_seed_has_no_spread_and_is_not_marked(keep, tmp_path):
    for seed in (0, 1):
        keep(f"one/seed-{seed}", seed=seed, signal=40.0)
        keep(f"two/seed-{seed}", seed=seed, signal=-40.0)
    comparison = compare_runs(tmp_path / "one", tmp_path / "two")
    figure = comparison("accuracy")
    assert (figure.difference, figure.low, figure.high) == (1, 1, 1)
    assert (figure.verdict, figure.has_spread) == ("", False)
    assert "no spread: every seed has the same difference" in str(comparison)
    # Over samples the same is sure.
    alone = compare_runs(tmp_path / "one" / "seed-0", tmp_path / "two" / "seed-0")
    assert (alone("accuracy").low, alone("accuracy").verdict) == (1, "better")


def test_each_ranks_by_its_own_score_and_both_by_every_score_that_both_give(keep):
    ours = keep("ours", default_score="energy")
    theirs = keep("theirs", signal=1.0)
    comparison = compare_runs(ours, theirs, num_draws=20)
    own = comparison("auroc", dataset="far")
    assert (own.score, own.their_score) == ("energy", "entropy")
    assert own.ours == load_scores(ours)("auroc", dataset="far", score="energy")
    assert own.theirs == load_scores(theirs)("auroc", dataset="far", score="entropy")
    by_energy = comparison("auroc", dataset="far", score="energy")
    assert by_energy.ours == own.ours
    assert by_energy.theirs == load_scores(theirs)("auroc", dataset="far", score="energy")
    assert own.difference == pytest.approx(own.ours - own.theirs)
    text = str(comparison)
    assert "far, by each one's own score\n" in text
    assert "far, by entropy\n" in text
    assert "Own score, that of the threshold: energy of ours, entropy of theirs." in text


def test_one_score_of_both_thresholds_is_not_compared_twice(pair):
    keys = [(f.dataset, f.name, f.score) for f in compare_runs(*pair, num_draws=5)]
    assert len(set(keys)) == len(keys)
    # Dempster-Shafer's is a function of the energy, and would be the same figures again.
    assert {score for _, name, score in keys if name == "auroc"} == {"msp", "entropy", "energy"}


def test_the_text_says_which_interval_it_is_and_how_many_figures_are_tested(pair):
    comparison = compare_runs(*pair)
    text = str(comparison)
    figure = comparison("nll")
    (line,) = [row for row in text.splitlines() if row.startswith("  NLL")]
    written = [f"{figure.ours:.4f}", f"{figure.theirs:.4f}", f"{figure.difference:+.4f}", f"{figure.low:+.4f}", "to", f"{figure.high:+.4f}"]  # fmt: skip
    assert line.split() == ["NLL", "↓", *written, "better"]
    figure = comparison("accuracy")
    assert f"{100 * figure.difference:+.2f} pp" in text
    assert "paired bootstrap (95%) over the same test samples, 1,000 draws" in text
    assert "do not say what other seeds would give" in text
    marked = sum(bool(f.verdict) for f in comparison)
    assert f"Marked: intervals without zero, {marked} of {len(comparison.figures)}. So many" in text
    assert max(map(len, text.splitlines()[1:-3])) <= 80


def test_a_comparison_is_a_record(pair):
    comparison = compare_runs(*pair, num_draws=20)
    assert from_record(Comparison, json.loads(json.dumps(to_record(comparison)))) == comparison


def test_a_figure_that_is_not_there_is_named_with_those_that_are(pair):
    comparison = compare_runs(*pair, num_draws=5)
    with pytest.raises(
        ConfigError, match=r"'aurocc' on far was not compared. Did you mean 'auroc'"
    ):
        comparison("aurocc", dataset="far")
    with pytest.raises(ConfigError, match="of the sets photos/test, far"):
        comparison("auroc", dataset="near")


def test_what_was_not_evaluated_is_named_with_the_command(keep, run, tmp_path):
    done = keep("done")
    with pytest.raises(ConfigError, match=rf"Run `lrformer evaluate {run.path}` first"):
        compare_runs(done, run.path)
    keep("many/seed-0", seed=0)
    (tmp_path / "many" / "seed-1").mkdir()
    shutil.copy(run.path / "config.json", tmp_path / "many" / "seed-1")
    many = tmp_path / "many"
    with pytest.raises(ConfigError, match=rf"{many}/seed-1 has not been evaluated, .*Run `lrformer evaluate {many}` first"):  # fmt: skip
        compare_runs(many, done)
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        compare_runs(done, tmp_path / "gone")
    with pytest.raises(ConfigError, match="name one run, or several seeds"):
        compare_runs(done, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": 59}, "other test data than .* \\(photos/test, 59 samples of 3 classes and photos/test, 60 samples.*`lrformer evaluate RUN --out .*other --ood PLACE/far --data PLACE`"),
        ({"test_set": "else/test"}, "other test data than .*else/test, 60"),
        ({"order": np.arange(60)[::-1]}, "their labels differ, sample by sample"),
        ({"unknown": {}}, "other unknown or corrupted sets than .* \\(none; far \\(40\\)\\); `lrformer evaluate RUN --out .*other --ood PLACE/far` evaluates it"),
        ({"unknown": {"far": 39}}, "other unknown or corrupted sets than .* \\(far \\(39\\); far \\(40\\)\\)"),
        ({"unknown": {"far": 40, "svhn": 9}}, "\\(far \\(40\\), svhn \\(9\\); far \\(40\\)\\)"),
        ({"settings": EvaluationConfig(num_draws=20, num_bins=7)}, "other settings than .* \\(--bins is 7 there and 15 here\\); `lrformer evaluate"),
        ({"settings": EvaluationConfig(num_draws=20, threshold=0.5)}, "--threshold is 0.5 there and 0.9 here"),
        ({"is_calibrated": False}, "other was evaluated without its temperature, and .*first with it"),
    ],
)  # fmt: skip
def test_what_was_not_evaluated_alike_is_refused_with_the_way_out(keep, changes, message):
    first, other = keep("first"), keep("other", **changes)
    with pytest.raises(ConfigError, match=message):
        compare_runs(first, other)


def test_the_command_that_helps_repeats_how_the_first_was_evaluated(keep):
    settings = EvaluationConfig(num_draws=5, num_bins=7, threshold=0.8)
    first = keep("first", unknown={"svhn": 9, "other-classes": 8, "ood-gray": 7}, settings=settings)
    with pytest.raises(ConfigError) as raised:
        compare_runs(first, other := keep("other"))
    command = (
        f"`lrformer evaluate RUN --out {other} --ood svhn --ood other-classes --ood PLACE:ood-gray --bins 7 --threshold 0.8` "
        f"evaluates it as {first} was"
    )
    assert command in str(raised.value)


def test_the_command_that_helps_is_of_all_seeds_of_a_side(keep, run, tmp_path):
    first = keep("first")
    for seed in (0, 1):
        folder = keep(f"many/seed-{seed}", seed=seed, unknown={})
        shutil.copy(run.path / "config.json", folder)
    with pytest.raises(ConfigError, match=rf"`lrformer evaluate {tmp_path / 'many'} --ood PLACE/far`"):  # fmt: skip
        compare_runs(first, tmp_path / "many")


def test_draws_and_seeds_of_the_evaluations_may_differ(keep):
    first = keep("first")
    other = keep("other", seed=1, settings=EvaluationConfig(num_draws=9, seed=4, level=0.8))
    assert compare_runs(first, other, num_draws=5).level == 0.95


def test_a_run_is_not_compared_with_itself_nor_named_twice(keep):
    first, other = keep("first"), keep("other")
    with pytest.raises(ConfigError, match="first is on both sides"):
        compare_runs(first, first)
    with pytest.raises(ConfigError, match="a run is named twice"):
        compare_runs([first, first], other)


def test_too_few_common_seeds_name_the_pair_that_can_be_compared(keep, tmp_path):
    for seed in (0, 1):
        keep(f"one/seed-{seed}", seed=seed)
    for seed in (1, 2):
        keep(f"two/seed-{seed}", seed=seed)
    one, two = tmp_path / "one", tmp_path / "two"
    way_out = f"`lrformer compare {one}/seed-1 --with {two}/seed-1`"
    with pytest.raises(
        ConfigError, match=rf"has the seeds 0, 1 and .* the seeds 1, 2: .*{way_out}"
    ):
        compare_runs(one, two)


def test_a_side_is_one_experiment(keep):
    first, second, other = keep("a", seed=0), keep("b", seed=1, method="sngp"), keep("c")
    with pytest.raises(ConfigError, match=r"b is no seed of the experiment of .*compare each by itself"):  # fmt: skip
        compare_runs([first, second], other)
    twin = keep("d", seed=0)
    with pytest.raises(ConfigError, match=r"d has the seed of .*Compare each by itself"):
        compare_runs([first, twin], other)


def test_arrays_of_any_two_models_are_compared_one_to_one(tmp_path):
    places = []
    for name, signal in (("mine", 3.0), ("yours", 0.5)):
        test = made_predictions(f"probs-of-{name}", 60, seed=0, signal=signal)
        ood = {"far": made_predictions("far", 40, seed=9, is_labeled=False)}
        places.append(Results.of(test, ood=ood, config=FEW).save(tmp_path / name))
    comparison = compare_runs(*places, num_draws=20)
    assert comparison("accuracy").verdict == "better"
    assert comparison("accuracy").theirs == load_scores(places[1])("accuracy")
    with pytest.raises(ConfigError, match="yours is not the evaluation of a run, so that nothing is"):  # fmt: skip
        compare_runs(places[0], [places[1], shutil.copytree(places[1], tmp_path / "z")])


def test_sets_whose_predictions_are_not_kept_are_compared_over_seeds_alone(keep, tmp_path):
    for place in ("one", "two"):
        for seed in (0, 1):
            folder = keep(f"{place}/seed-{seed}", seed=seed, signal=2.0 if place == "one" else 1.0)
            metrics = json.loads((folder / "metrics.json").read_text())
            record = metrics["evaluation"]
            record["sets"].append({"name": "made-noise", "role": "made", "num_samples": 40})
            made = [{**m, "dataset": "made-noise"} for m in record["metrics"] if m["dataset"] == "far"]  # fmt: skip
            record["metrics"] += made
            (folder / "metrics.json").write_text(json.dumps(metrics))
    over_seeds = compare_runs(tmp_path / "one", tmp_path / "two")
    made, far = (over_seeds("auroc", dataset=name) for name in ("made-noise", "far"))
    assert (made.difference, made.low) == (far.difference, far.low)
    assert over_seeds.left_out == ()
    alone = compare_runs(tmp_path / "one" / "seed-0", tmp_path / "two" / "seed-0", num_draws=5)
    assert alone.left_out == ("made-noise (of which no predictions are kept)",)
    assert "made-noise (of which no predictions are kept)" in str(alone)


def test_runs_that_learned_from_other_data_or_from_the_test_set_are_noted(keep, run):
    first = keep("first")
    other = keep("other", seed=1)
    metrics = json.loads((other / "metrics.json").read_text())
    about = metrics["evaluation"]["about"]
    about["config"]["data_digest"] = "of others"
    about["evaluated on"] = "photos/test (the run was trained on this one)"
    (other / "metrics.json").write_text(json.dumps(metrics))
    notes = compare_runs(first, other, num_draws=5).notes
    assert any("trained on other data" in note for note in notes)
    assert f"photos/test is not new to {other}: the run was trained on this one." in notes
    assert compare_runs(first, keep("third", seed=2), num_draws=5).notes == ()


def test_no_model_is_opened(pair, monkeypatch):
    monkeypatch.setattr("lrformer.training.run_folder.load_method", None)
    monkeypatch.setattr(torch.nn.Module, "__call__", None)
    assert compare_runs(*pair, num_draws=5).figures


def test_predictions_that_are_gone_are_named(pair):
    (pair[1] / "evaluation" / "test.npz").unlink()
    with pytest.raises(ConfigError, match=r"test.npz cannot be read as predictions .*`lrformer evaluate` writes"):  # fmt: skip
        compare_runs(*pair)


def test_draws_and_levels_that_make_no_interval_are_refused(pair):
    for changes, message in (({"level": 95}, "level"), ({"num_draws": 0}, "num_draws")):
        with pytest.raises(ConfigError, match=message):
            compare_runs(*pair, **changes)
