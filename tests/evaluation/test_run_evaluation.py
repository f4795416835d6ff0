import dataclasses
import json
import shutil

import numpy as np
import pytest

from lrformer.core import ConfigError
from lrformer.data import load_dataset
from lrformer.data.channels import match_channels
from lrformer.evaluation import (
    EvaluationConfig,
    Results,
    evaluate,
    evaluate_run,
    load_ood_split,
    load_test_split,
    predict_run,
)
from lrformer.evaluation.bounds import bounds
from lrformer.evaluation.run_data import default_ood, parse_corruptions
from lrformer.training import TrainConfig

FEW = EvaluationConfig(num_draws=10)


def test_a_run_is_evaluated_on_its_test_set_and_on_the_unknown_that_comes_with_its_data(run):
    results = evaluate_run(run, config=FEW, device="cpu")
    test = load_test_split(run.config)
    assert test.name == "data/test"
    assert len(test) == 3 * 14
    name, unknown = load_ood_split(run.config, f"{run.config.train.data}:ood-gray")
    assert name == "ood-gray"
    expected = evaluate(
        predict_run(run, test),
        ood={name: predict_run(run, unknown, name=name, is_labeled=False)},
        rule=run.rule,
        config=FEW,
    )
    assert results.scores.metrics == expected.metrics
    assert results.scores("accuracy") > 0.6
    assert results.scores.about["method"] == "deterministic"
    assert results.scores.about["config"]["class_names"] == ["blue", "green", "red"]


def test_results_come_back_from_their_folder_and_leave_what_training_wrote(
    run, workspace, tmp_path
):
    folder = shutil.copytree(workspace / "run", tmp_path / "run")
    results = evaluate_run(folder, config=FEW, corruptions=["fog:2"], device="cpu")
    results.save(folder)
    back = Results.load(folder)
    assert back.scores == results.scores
    assert np.array_equal(back.test.probs, results.test.probs)
    assert list(back.ood) == ["ood-gray"]
    assert np.array_equal(back.ood["ood-gray"].probs, results.ood["ood-gray"].probs)
    assert back.gallery.entries == results.gallery.entries
    assert [entry.name for entry in back.scores.of_role("corrupted")] == ["fog-2"]
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["training"] == {"made": "by a test"}
    results = evaluate_run(folder, ood=[], config=FEW, device="cpu")
    results.save(folder)
    assert Results.load(folder).ood == {}
    assert not list((folder / "evaluation").glob("ood-*"))


def test_any_folder_of_images_can_be_the_unknown_whatever_its_sizes(run, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for number, shape in enumerate(((20, 30, 3), (9, 9, 3), (40, 12))):
        pixels = rng.integers(0, 256, shape).astype(np.uint8)
        (tmp_path / "strange" / "deep").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "strange" / "deep" / f"{number}.png")
    results = evaluate_run(run, ood=[str(tmp_path / "strange")], config=FEW, device="cpu")
    assert len(results.ood["strange"]) == 3


def test_gray_sets_are_repeated_and_color_sets_weighted_to_gray(run):
    name, digits = load_ood_split(run.config, "digits")
    assert name == "digits"
    assert digits.x.shape[1:] == (8, 8, 3)
    assert np.array_equal(digits.x[..., 0], digits.x[..., 2])
    color = load_test_split(run.config)
    gray = match_channels(color, 1)
    red, green, blue = np.moveaxis(np.asarray(color.x, dtype=float), 3, 0)
    expected = np.rint(0.299 * red + 0.587 * green + 0.114 * blue)
    assert np.abs(gray.x[..., 0] - expected).max() <= 1
    assert len(gray.mean) == 1


def test_gray_in_color_is_the_same_gray_and_is_normalized_alike(run):
    digits = load_dataset("digits", split="test")
    levels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8, 1)
    gray = dataclasses.replace(digits.take(np.arange(4)), x=levels, mean=(0.3,), std=(0.2,))
    color = match_channels(gray, 3)
    assert (color.mean, color.std) == ((0.3,) * 3, (0.2,) * 3)
    back = match_channels(color, 1)
    assert np.array_equal(back.x, levels)
    assert (back.mean, back.std) == (gray.mean, gray.std)


def test_classes_that_were_left_out_are_an_unknown_set_of_their_own(run):
    train = TrainConfig(data="digits", classes=(7, 3), epochs=1)
    config = dataclasses.replace(run.config, train=train, class_names=("7", "3"), mean=(0.5,), std=(1.0,))  # fmt: skip
    assert default_ood(config) == ["other-classes"]
    known = load_test_split(config)
    name, others = load_ood_split(config, "other-classes")
    assert name == "other-classes"
    assert known.class_names == ("7", "3")
    assert sorted(others.class_names) == sorted(set("0123456789") - {"7", "3"})
    assert len(known) + len(others) == len(load_dataset("digits", split="test"))
    with pytest.raises(ConfigError, match="this one knows all"):
        load_ood_split(run.config, "other-classes")


def test_classes_that_were_left_out_come_with_the_runs_own_data_alone(run, workspace):
    train = TrainConfig(data="digits", classes=(7, 3), epochs=1)
    config = dataclasses.replace(run.config, train=train, class_names=("7", "3"))
    data = str(workspace / "data")
    assert default_ood(config, data=data) == [f"{data}:ood-gray"]


def test_a_wrong_name_is_found_before_anything_is_predicted(run):
    counted = []
    with pytest.raises(ConfigError, match="Did you mean 'svhn'"):
        evaluate_run(run, ood=["digits", "svnh"], advance=counted.append)
    with pytest.raises(ConfigError, match=r"unknown corruption 'fogg'\. Did you mean 'fog'"):
        evaluate_run(run, corruptions=["fogg"], advance=counted.append)
    gray = f"{run.config.train.data}:ood-gray"
    with pytest.raises(ConfigError, match="two OOD sets are named 'ood-gray'"):
        evaluate_run(run, ood=[gray, gray], advance=counted.append)
    with pytest.raises(ConfigError, match="Did you mean 'ood-gray'"):
        evaluate_run(run, ood=[gray.replace("gray", "gary")], advance=counted.append)
    with pytest.raises(ConfigError, match="device"):
        evaluate_run(run.path, device="gpu")
    assert counted == []


def test_points_cannot_be_corrupted_and_are_not_predicted_first(run):
    train = TrainConfig(data="two_moons", epochs=1)
    moons = dataclasses.replace(run.config, train=train, class_names=("upper", "lower"))
    counted = []
    with pytest.raises(ConfigError, match="holds points, not images"):
        evaluate_run(
            dataclasses.replace(run, config=moons), corruptions=["fog"], advance=counted.append
        )
    assert counted == []


def test_corruptions_are_named_one_by_one_by_kind_or_all():
    assert parse_corruptions(["fog:3", "fog:3", "contrast:1"]) == [("fog", 3), ("contrast", 1)]
    assert parse_corruptions(["fog"]) == [("fog", severity) for severity in range(1, 6)]
    assert len(parse_corruptions(["all"])) == 75
    assert {severity for _, severity in parse_corruptions(["all:4"])} == {4}
    with pytest.raises(ConfigError, match=r"severity \(9\) must be one of 1 to 5"):
        parse_corruptions(["fog:9"])


def test_a_folder_that_was_never_evaluated_says_what_to_do(run, tmp_path):
    with pytest.raises(ConfigError, match=r"has not been evaluated.*lrformer evaluate"):
        Results.load(run.path)
    with pytest.raises(ConfigError, match="has not been evaluated"):
        Results.load(tmp_path)


def test_a_folder_with_the_mean_over_runs_points_to_their_reports(tmp_path):
    (tmp_path / "seeds.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"the mean over several runs.* own report") as error:
        Results.load(tmp_path)
    assert "lrformer evaluate" not in str(error.value)


def test_a_run_is_bound_as_its_method_is(run):
    assert bounds(run).chain == bounds(run.method).chain
    with pytest.raises(ConfigError, match=r"model \(a dict\) must be a module or a run"):
        bounds({"a": "run"})  # pyright: ignore[reportArgumentType]
