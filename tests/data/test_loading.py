import re

import numpy as np
import pytest
from sklearn.datasets import load_digits

from lrformer.core import ConfigError
from lrformer.data import list_datasets, list_splits, load_dataset, two_moons


def test_the_digits_are_all_there_once_with_their_gray_levels(tmp_path):
    parts = [load_dataset("digits", split=split, root=tmp_path) for split in
             ("train", "val", "test")]  # fmt: skip
    images, labels = load_digits(return_X_y=True)
    expected = sorted((tuple(row), label) for row, label in zip(images, labels, strict=True))
    found = sorted(
        (tuple(image.ravel() / 255 * 16), label)
        for part in parts
        for image, label in zip(np.asarray(part.x), part.y, strict=True)
    )
    np.testing.assert_allclose([r for r, _ in found], [r for r, _ in expected], atol=0.04)
    assert [label for _, label in found] == [label for _, label in expected]
    assert list(tmp_path.iterdir()) == []


def test_the_test_split_does_not_depend_on_the_seed_and_validation_does():
    first, second = (load_dataset("digits", split="test", seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(first.x, second.x)
    first, second = (load_dataset("digits", split="val", seed=seed) for seed in (0, 1))
    assert not np.array_equal(first.x, second.x)


def test_known_and_unknown_digits_share_no_class():
    known = load_dataset("digits", classes=range(7))
    unknown = load_dataset("digits", split="test", classes=["7", "8", "9"])
    assert known.class_names == tuple("0123456")
    assert unknown.class_names == ("7", "8", "9")
    assert set(known.y) == set(range(7))
    assert known.mean == unknown.mean


def test_moons_without_noise_lie_on_two_half_circles():
    moons = two_moons(200, noise=0.0, seed=3)
    x = np.asarray(moons.x)
    upper, lower = x[moons.y == 0], x[moons.y == 1]
    np.testing.assert_allclose(np.hypot(*upper.T), 1, atol=1e-6)
    np.testing.assert_allclose(np.hypot(lower[:, 0] - 1, lower[:, 1] - 0.5), 1, atol=1e-6)
    assert len(upper) == len(lower) == 100


def test_moons_are_seeded():
    np.testing.assert_array_equal(two_moons(50, seed=1).x, two_moons(50, seed=1).x)
    assert not np.array_equal(two_moons(50, seed=1).x, two_moons(50, seed=2).x)
    train, test = (load_dataset("two_moons", split=split) for split in ("train+val", "test"))
    assert not np.array_equal(train.x, test.x)
    np.testing.assert_allclose(train.mean, np.asarray(train.x).mean(axis=0))
    with pytest.raises(ConfigError, match="noise"):
        two_moons(noise=-1.0)


def test_a_folder_of_arrays_is_used_where_it_lies(tmp_path, random_split):
    data = random_split(40, num_classes=4)
    folder = tmp_path / "mine"
    folder.mkdir()
    for split, rows in (("train", slice(0, 32)), ("test", slice(32, 34))):
        np.save(folder / f"{split}-x.npy", data.x[rows])
        np.save(folder / f"{split}-y.npy", data.y[rows].astype(np.uint8))
    train = load_dataset(folder, root=tmp_path / "unused", val_fraction=0.25)
    val = load_dataset(folder, split="val", root=tmp_path / "unused", val_fraction=0.25)
    test = load_dataset(folder, split="test", root=tmp_path / "unused")
    assert (len(train), len(val), len(test)) == (24, 8, 2)
    assert np.bincount(val.y).tolist() == [2, 2, 2, 2]
    # The two test samples name two classes only; the names are those of the training set.
    assert test.class_names == train.class_names == ("0", "1", "2", "3")
    assert test.mean == train.mean
    assert not (tmp_path / "unused").exists()
    assert list_splits(folder) == ["train", "val", "train+val", "test"]


def test_all_arrays_have_the_classes_of_new_training_arrays(tmp_path, random_split):
    folder = tmp_path / "mine"
    folder.mkdir()
    for num_classes in (3, 4):
        data = random_split(40, num_classes=num_classes, seed=num_classes)
        for split, rows in (("train", slice(0, 32)), ("ood-new", slice(36, 40))):
            np.save(folder / f"{split}-x.npy", data.x[rows])
            np.save(folder / f"{split}-y.npy", data.y[rows])
        if num_classes == 3:
            np.save(folder / "test-x.npy", data.x[32:36])
            np.save(folder / "test-y.npy", data.y[32:36])
        else:
            # As the error asks where arrays were replaced.
            with pytest.raises(ConfigError, match=r"Remove train.json if the new content is meant"):
                load_dataset(folder)
            for split in ("train", "ood-new"):
                (folder / f"{split}.json").unlink()
        for split in ("train", "test"):
            assert load_dataset(folder, split=split).num_classes == num_classes


def test_arrays_that_share_an_image_are_refused_by_file_and_row_unless_the_set_is_published(
    tmp_path, random_split
):
    data = random_split(20, side=32)
    for name in ("mine", "cifar10"):
        folder = tmp_path / name
        folder.mkdir()
        np.save(folder / "train-x.npy", data.x[:16])
        np.save(folder / "train-y.npy", data.y[:16])
        np.save(folder / "val-x.npy", data.x[12:])
        np.save(folder / "val-y.npy", data.y[12:])
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            load_dataset(tmp_path / "mine", split="val")
        first, others = str(refused.value).split(" So are these: ")
        assert re.match(r".*val-x.npy row 0 \(val\) is .*train-x.npy row 12", first)
        assert re.findall(r"row (\d+)", others) == ["1", "13", "2", "14", "3", "15"]
    assert len(load_dataset(tmp_path / "cifar10", split="val")) == 8


def test_arrays_in_a_folder_named_after_a_set_have_its_names_and_statistics(tmp_path):
    folder = tmp_path / "svhn"
    folder.mkdir()
    np.save(folder / "test-x.npy", np.zeros((3, 32, 32, 3), np.uint8))
    np.save(folder / "test-y.npy", np.array([0, 1, 2], np.uint8))
    by_name = load_dataset("svhn", split="test", root=tmp_path, download=False)
    by_path = load_dataset(folder, split="test")
    assert by_name.class_names == by_path.class_names == tuple("0123456789")
    assert by_name.mean == by_path.mean == (0.4377, 0.4438, 0.4728)


def test_a_training_set_without_one_of_its_classes_is_refused(tmp_path):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    np.save(folder / "train-x.npy", np.zeros((18, 32, 32, 3), np.uint8))
    np.save(folder / "train-y.npy", np.arange(18) % 9)
    with pytest.raises(ConfigError, match="cifar10/train: class 'truck' has no sample"):
        load_dataset("cifar10", root=tmp_path, download=False)
    with pytest.raises(ConfigError, match=r"image_size \(64\) is for image files"):
        load_dataset("digits", image_size=64)


def test_a_training_set_of_one_class_is_refused(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    np.save(folder / "train-x.npy", np.zeros((4, 8, 8, 1), np.uint8))
    np.save(folder / "train-y.npy", np.zeros(4, np.uint8))
    with pytest.raises(ConfigError, match="mine/train: there is only one class"):
        load_dataset(folder)


def test_wrong_names_and_splits_get_the_nearest_right_one():
    assert list_datasets() == ["two_moons", "digits", "cifar10", "cifar100", "svhn", "imagenet"]
    with pytest.raises(ConfigError, match="Did you mean 'cifar100'"):
        load_dataset("cifar-100")
    with pytest.raises(ConfigError, match=r"no split 'tset'. Did you mean 'test'"):
        load_dataset("digits", split="tset")


def test_a_folder_that_is_not_there_gets_the_nearest_one_beside_it(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(ConfigError, match=rf"Did you mean '{tmp_path}/photos'"):
        load_dataset(tmp_path / "photo")


def test_a_validation_set_alone_is_loaded(tmp_path, random_split):
    data = random_split(6, side=8)
    np.save(tmp_path / "val-x.npy", data.x)
    np.save(tmp_path / "val-y.npy", data.y)
    assert list_splits(tmp_path) == ["val"]
    assert np.array_equal(load_dataset(tmp_path, split="val").x, data.x)
    with pytest.raises(ConfigError, match="has no training set"):
        load_dataset(tmp_path, split="train")


def test_a_file_is_said_to_be_one(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt' is a file; give a folder"):
        load_dataset(str(path))
