"""A run is measured on other labeled data than its own: moved, new, in another order, without a training set."""

import dataclasses
import shutil

import numpy as np
import pytest

from lrformer.core import ConfigError
from lrformer.data import load_dataset
from lrformer.evaluation import (
    EvaluationConfig,
    evaluate_run,
    find_files,
    load_test_split,
    predict_run,
)
from lrformer.evaluation.run_data import check_unknown, known_name, seen_part
from lrformer.training import RuntimeConfig, TrainConfig, load_run, train
from tests.evaluation.made_run import COLORS, write_images, write_run

FEW = EvaluationConfig(num_draws=5)


def test_data_that_moved_give_the_figures_that_they_gave_before(run, workspace, tmp_path):
    moved = shutil.copytree(workspace / "data", tmp_path / "moved")
    before = evaluate_run(run, config=FEW, device="cpu")
    gone = dataclasses.replace(run.config.train, data=str(tmp_path / "gone"))
    lost = dataclasses.replace(run, config=dataclasses.replace(run.config, train=gone))
    counted: list[int] = []
    with pytest.raises(ConfigError, match=r"gone', which the run was trained on, is not there; .*--data"):  # fmt: skip
        evaluate_run(lost, config=FEW, device="cpu", advance=counted.append)
    assert counted == []
    after = evaluate_run(lost, data=str(moved), config=FEW, device="cpu")
    assert np.array_equal(after.test.probs, before.test.probs)
    assert list(after.ood) == ["ood-gray"]
    assert after.scores("accuracy") == before.scores("accuracy")
    assert after.test.name == "moved/test"
    val = evaluate_run(lost, data=f"{moved}:val", ood=[], config=FEW, device="cpu")
    assert (val.test.name, len(val.test)) == ("moved/val", 36)


def test_a_relative_place_is_missed_with_the_folder_it_was_looked_for_from(
    run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    train = dataclasses.replace(run.config.train, data="photos")
    with pytest.raises(ConfigError, match=f"seen from {tmp_path}"):
        load_test_split(dataclasses.replace(run.config, train=train))


def test_a_folder_of_the_same_name_with_other_data_is_not_taken_for_its_own(
    run, workspace, tmp_path, monkeypatch
):
    (tmp_path / "there").mkdir()
    shutil.copytree(workspace / "data", tmp_path / "there" / "photos")
    train = dataclasses.replace(run.config.train, data="photos")
    config = dataclasses.replace(run.config, train=train)
    monkeypatch.chdir(tmp_path / "there")
    assert len(load_test_split(config)) == 42
    (tmp_path / "here").mkdir()
    moved = shutil.copytree(workspace / "data", tmp_path / "here" / "photos")
    shutil.rmtree(moved / "train" / "red")
    write_images(moved / "train" / "red", COLORS["red"], 20, seed=123)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(
        ConfigError, match=r"the training data in 'photos' are not those that .*--data"
    ):
        load_test_split(config)
    assert len(load_test_split(config, data="photos")) == 42  # asked for
    shutil.rmtree(moved / "train")
    assert len(load_test_split(config, data="photos:test")) == 42


def test_runs_from_before_the_digest_was_kept_and_of_named_data_need_no_training_set(
    run, workspace, tmp_path
):
    older = dataclasses.replace(run.config, data_digest=None)
    assert len(load_test_split(older)) == 42
    draw = np.random.default_rng(0)
    for split, number in (("train", 20), ("test", 10)):
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        x = draw.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)
        np.save(tmp_path / "cifar10" / f"{split}-x.npy", x)
        np.save(tmp_path / "cifar10" / f"{split}-y.npy", np.arange(number) % 10)
    for file in (tmp_path / "cifar10").glob("train*"):
        file.unlink()
    train = dataclasses.replace(run.config.train, data="cifar10", root=str(tmp_path))
    names = load_dataset("cifar10", split="test", root=tmp_path).class_names
    named = dataclasses.replace(
        run.config, train=train, data_digest="of the training set", class_names=names
    )
    assert len(load_test_split(named)) == 10


@pytest.mark.parametrize("inner", ["", "test"], ids=["class directories", "test"])
def test_new_pictures_need_no_training_set_and_not_every_class(run, tmp_path, inner):
    folder = tmp_path / "new" / inner
    for seed, name in enumerate(("red", "green")):
        write_images(folder / name, COLORS[name], 5, seed=50 + seed)
    split = load_test_split(run.config, data=str(tmp_path / "new"))
    assert split.class_names == ("blue", "green", "red")
    assert sorted(split.y.tolist()) == [1] * 5 + [2] * 5
    assert split.files is not None
    for label, name in zip(split.y, split.files, strict=True):
        assert f"/{split.class_names[label]}/" in name
    results = evaluate_run(run, data=str(tmp_path / "new"), config=FEW, device="cpu")
    expected = (predict_run(run, split).probs.argmax(axis=1) == split.y).mean()
    assert results.scores("accuracy") == pytest.approx(expected)
    assert results.ood == {}


def test_labels_are_those_of_the_run_where_other_data_number_their_classes_otherwise(run, tmp_path):
    for part, split in enumerate(("train", "test")):
        for label, name in enumerate(("green", "red")):
            seed = 70 + 10 * part + label
            write_images(tmp_path / "two" / split / name, COLORS[name], 4, seed=seed)
    split = load_test_split(run.config, data=str(tmp_path / "two"))
    assert split.class_names == ("blue", "green", "red")
    assert sorted(split.y.tolist()) == [1] * 4 + [2] * 4


def test_a_class_that_the_run_does_not_know_is_refused_by_name(run, tmp_path):
    for name in ("red", "purple"):
        write_images(tmp_path / "new" / name, (90, 30, 90), 3, seed=5)
    with pytest.raises(ConfigError, match="purple is a class that is none of blue, green, red"):
        evaluate_run(run, data=str(tmp_path / "new"), device="cpu")
    with pytest.raises(ConfigError, match=r"not trained on: 0, 1, .*\. It knows blue, green, red"):
        evaluate_run(run, data="digits", device="cpu")
    with pytest.raises(ConfigError, match="neither a data set nor a directory"):
        evaluate_run(run, data=str(tmp_path / "nwe"), device="cpu")


def test_data_without_class_directories_are_refused(run, tmp_path):
    write_images(tmp_path / "flat", (90, 30, 90), 3, seed=5)
    with pytest.raises(ConfigError, match="flat has no class directory in it"):
        evaluate_run(run, data=str(tmp_path / "flat"), device="cpu")


def test_what_is_measured_as_known_is_not_measured_as_unknown(run, workspace, tmp_path):
    moved = shutil.copytree(workspace / "data", tmp_path / "moved")
    for spec in (moved, f"{moved}:val", moved / "val", moved / "train" / "red"):
        with pytest.raises(
            ConfigError, match=r"moved.* is what the run was trained or is measured"
        ):
            evaluate_run(run, data=f"{moved}:test", ood=[str(spec)], config=FEW, device="cpu")


def test_a_part_of_the_training_data_is_not_unknown(run, workspace):
    own = workspace / "data"
    for spec in (own / "train", own / "val", own / "train" / ".." / "test", own.parent):
        with pytest.raises(ConfigError, match="is what the run was trained or is measured on"):
            evaluate_run(run, ood=[str(spec)], config=FEW, device="cpu")
    results = evaluate_run(run, ood=[str(own / "ood-gray")], config=FEW, device="cpu")
    assert list(results.ood) == ["ood-gray"]


def test_what_counts_of_a_part_is_the_split_it_lies_in_and_not_its_own_name(tmp_path):
    for part in ("ood-faces/young", "train/ood-looking"):
        (tmp_path / part).mkdir(parents=True)
    check_unknown(str(tmp_path), str(tmp_path / "ood-faces" / "young"))
    with pytest.raises(ConfigError, match="is what the run was trained or is measured on"):
        check_unknown(str(tmp_path), str(tmp_path / "train" / "ood-looking"))


def test_measuring_a_run_on_its_own_folder_prepares_none_of_its_images_again(workspace, tmp_path):
    write_run(tmp_path / "run", workspace / "data", root=tmp_path / "cache")
    before = set((tmp_path / "cache").rglob("*"))
    assert len(load_test_split(load_run(tmp_path / "run").config)) == 42
    assert set((tmp_path / "cache").rglob("*")) == before


def test_one_name_in_the_place_of_a_list_is_refused(run):
    with pytest.raises(
        ConfigError, match=r"ood \('svhn'\) must be a list of names; give \['svhn'\]"
    ):
        evaluate_run(run, ood="svhn", device="cpu")
    with pytest.raises(ConfigError, match=r"corruptions \('fog'\) must be a list"):
        evaluate_run(run, corruptions="fog", device="cpu")
    with pytest.raises(ConfigError, match=r"places \('new'\) must be a list"):
        find_files("new")


def test_of_data_that_the_run_was_made_from_it_is_said_wherever_they_lie(run, workspace, tmp_path):
    own, moved = workspace / "data", shutil.copytree(workspace / "data", tmp_path / "moved")
    copied = shutil.copytree(own / "train", tmp_path / "copied")
    trained = " (the run was trained on this one)"
    fitted = " (temperature and threshold were fitted on this one)"
    notes = {
        f"{own}:train": trained,
        f"{own}/train": trained,
        f"{moved}:train": trained,
        f"{moved}/train": trained,
        str(copied): trained,
        f"{own}:train+val": trained,  # nothing is cut where there is a val
        f"{own}:val": fitted,
        f"{own}/val": fitted,
        f"{moved}:val": fitted,
        f"{own}:test": "",
        f"{own}/test": "",
        str(moved): "",
    }  # fmt: skip
    for data, note in notes.items():
        found = evaluate_run(run, data=data, ood=[], config=FEW, device="cpu").scores
        assert found.about["evaluated on"] == f"{found.test_set}{note}", data


def test_what_the_run_has_learned_from_the_test_set_is_read_from_the_record(run, workspace):
    own = workspace / "data"
    for data, note in ((f"{own}:train", "the run was trained on this one"), (f"{own}:test", None)):
        found = evaluate_run(run, data=data, ood=[], config=FEW, device="cpu").scores
        assert found.test_note == note
        assert found.noted_test_set == found.about["evaluated on"]
    assert dataclasses.replace(found, about={}).test_note is None
    assert dataclasses.replace(found, about={"evaluated on": 5}).test_note is None
    cut = {"evaluated on": f"{found.test_set} (half of"}
    assert dataclasses.replace(found, about=cut).test_note is None


@pytest.mark.parametrize(
    ("place", "name"), [("new", "new"), ("new:test", "new"), ("inner", "inner/test")]
)
def test_a_folder_of_class_directories_is_named_without_a_split_that_it_does_not_have(
    run, tmp_path, place, name
):
    for folder in ("new", "inner/test"):
        write_images(tmp_path / folder / "red", COLORS["red"], 4, seed=50)
    found = evaluate_run(run, data=str(tmp_path / place), config=FEW, device="cpu")
    assert found.test.name == found.scores.test_set == name
    assert found.scores.about["evaluated on"] == name
    assert {entry.dataset for entry in found.gallery.entries} == {name}


@pytest.mark.parametrize(
    ("part", "name", "note"),
    [("train", "train", "the run was trained on this one"), ("test", "test", None)],
)
def test_a_part_of_the_runs_own_folder_is_named_as_it_is(run, workspace, part, name, note):
    data = str(workspace / "data" / part)
    found = evaluate_run(run, data=data, ood=[], config=FEW, device="cpu").scores
    assert (found.test_set, found.test_note) == (name, note)


def test_a_folder_of_arrays_and_one_without_a_name_keep_the_name_of_their_split(run, tmp_path):
    draw = np.random.default_rng(0)
    np.save(tmp_path / "test-x.npy", draw.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8))
    np.save(tmp_path / "test-y.npy", np.arange(6) % 3)
    split = load_dataset(tmp_path, split="test")
    assert known_name(split, data=str(tmp_path), taken=()) == f"{tmp_path.name}/test"
    assert known_name(split, data="/", taken=()) == split.name


def test_only_the_training_and_the_validation_part_of_its_own_folder_are_known_to_a_run(
    run, workspace, tmp_path
):
    moved = shutil.copytree(workspace / "data", tmp_path / "moved")
    write_images(moved / "later" / "red", COLORS["red"], 4, seed=60)
    train = dataclasses.replace(run.config.train, data=str(moved))
    config = dataclasses.replace(run.config, train=train)
    for part, known in (("later", None), ("test", None), ("val", "val"), ("train", "train")):
        data = str(moved / part)
        split = load_test_split(config, data=data)
        assert seen_part(config, split, data=data) == known, part


def test_a_run_and_data_without_a_digest_are_not_taken_for_the_same(run, tmp_path):
    write_images(tmp_path / "new" / "red", COLORS["red"], 4, seed=60)
    data = str(tmp_path / "new")
    split = dataclasses.replace(load_test_split(run.config, data=data), digest=None)
    older = dataclasses.replace(run.config, data_digest=None)
    assert seen_part(older, split, data=data) is None
    moons = load_dataset("two_moons")
    assert moons.digest is None
    assert seen_part(older, moons, data="two_moons:train") is None


def test_a_run_from_before_the_digest_was_kept_knows_its_own_folder_by_any_spelling(run, workspace):
    older = dataclasses.replace(run.config, data_digest=None)
    for place in (f"{workspace}/data/", f"{workspace}/run/../data"):
        split = load_test_split(older, data=f"{place}:val")
        assert seen_part(older, split, data=f"{place}:val") == "val"


def test_of_named_data_the_parts_are_known_by_the_name_and_not_by_a_folder_that_has_it(
    run, tmp_path, monkeypatch
):
    train = dataclasses.replace(run.config.train, data="digits")
    digits = load_dataset("digits", split="val")
    config = dataclasses.replace(
        run.config, train=train, class_names=digits.class_names, data_digest=digits.digest
    )
    assert seen_part(config, digits, data="digits:val") == "val"
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(digits.class_names):
        write_images(tmp_path / "digits" / "val" / name, (9, 9, 9), 1, seed=number)
    other = load_test_split(config, data="digits/val")
    assert seen_part(config, other, data="digits/val") is None


def test_what_a_run_has_learned_from_is_looked_for_under_the_root_that_was_asked_for(
    run, workspace, tmp_path
):
    moved = shutil.copytree(workspace / "data", tmp_path / "moved")
    before = set((workspace / "cache").rglob("*"))
    root = tmp_path / "cache"
    found = evaluate_run(run, data=f"{moved}:val", root=root, ood=[], config=FEW, device="cpu")
    assert found.scores.test_note == "temperature and threshold were fitted on this one"
    assert set((workspace / "cache").rglob("*")) == before


def test_known_and_unknown_folders_of_one_name_are_told_apart(run, tmp_path):
    write_images(tmp_path / "a" / "photos" / "red", COLORS["red"], 4, seed=50)
    write_images(tmp_path / "b" / "photos", (90, 30, 90), 4, seed=51)
    data, far = str(tmp_path / "a" / "photos"), str(tmp_path / "b" / "photos")
    found = evaluate_run(run, data=data, ood=[far], config=FEW, device="cpu")
    assert (found.test.name, list(found.ood)) == ("photos/test", ["photos"])
    write_images(tmp_path / "fog-1" / "red", COLORS["red"], 4, seed=52)
    foggy = evaluate_run(
        run, data=str(tmp_path / "fog-1"), ood=[], corruptions=["fog:1"], config=FEW, device="cpu"
    )
    assert [entry.name for entry in foggy.scores.sets][:2] == ["fog-1/test", "fog-1"]


def test_a_training_or_validation_set_of_other_data_has_no_note(run, tmp_path):
    for part, split in enumerate(("train", "val")):
        for label, name in enumerate(("green", "red")):
            seed = 70 + 10 * part + label
            write_images(tmp_path / "two" / split / name, COLORS[name], 4, seed=seed)
    for spec in (
        tmp_path / "two" / "train",
        f"{tmp_path / 'two'}:train",
        f"{tmp_path / 'two'}:val",
    ):
        found = evaluate_run(run, data=str(spec), ood=[], config=FEW, device="cpu").scores
        assert found.about["evaluated on"] == found.test_set


def test_where_there_is_no_test_split_it_is_said_what_the_validation_split_was_used_for(tmp_path):
    for label, name in enumerate(COLORS):
        write_images(tmp_path / "data" / "train" / name, COLORS[name], 20, seed=label)
    write_run(tmp_path / "run", tmp_path / "data", root=tmp_path / "cache")
    found = evaluate_run(tmp_path / "run", config=FEW, device="cpu").scores
    assert found.about["evaluated on"] == (
        "data/val (there is no test split; temperature and threshold were fitted on this one)"
    )
    cut = evaluate_run(tmp_path / "run", data=f"{tmp_path / 'data'}:val", config=FEW, device="cpu")
    words = "data/val (temperature and threshold were fitted on this one)"
    assert cut.scores.about["evaluated on"] == words
    data = f"{tmp_path / 'data'}:train+val"
    whole = evaluate_run(tmp_path / "run", data=data, config=FEW, device="cpu").scores
    assert whole.about["evaluated on"] == (
        "data/train (the run was trained on most of this one, temperature and threshold were fitted on the rest)"
    )


def test_what_is_refused_as_unknown_is_told_where_the_unknown_of_its_data_is(run, workspace):
    own = workspace / "data"
    with pytest.raises(ConfigError, match=f"its unknown sets are {own}:ood-NAME, where it has any"):
        evaluate_run(run, ood=[str(own / "train")], device="cpu")
    with pytest.raises(ConfigError, match="not unknown to it; the classes that were left out are"):
        check_unknown("digits", "digits:test")


def test_an_unknown_set_of_another_kind_is_refused_before_anything_is_predicted(run):
    counted: list[int] = []
    with pytest.raises(ConfigError, match="'two_moons' holds points, and the run reads images"):
        evaluate_run(run, ood=["two_moons"], device="cpu", advance=counted.append)
    assert counted == []


def test_a_class_that_was_left_out_may_have_one_image(workspace, tmp_path):
    data = tmp_path / "data"
    for place, name in enumerate(("red", "green")):
        write_images(data / "train" / name, COLORS[name], 12, seed=place)
    write_images(data / "train" / "blue", COLORS["blue"], 1, seed=9)
    config = TrainConfig(
        data=str(data),
        root=str(tmp_path / "cache"),
        classes=("red", "green"),
        method="deterministic",
        model="lrformer_digits",
        model_overrides={"depth": 1, "embed_dim": 16},
        image_size=16,
        epochs=1,
    )
    run = train(config, tmp_path / "run", runtime=RuntimeConfig(device="cpu", quiet=True))
    results = evaluate_run(run, config=FEW, device="cpu")
    assert results.test.name.startswith("data/val")
    assert {name: len(found) for name, found in results.ood.items()} == {"other-classes": 1}
