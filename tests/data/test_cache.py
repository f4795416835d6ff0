import json
import os

import numpy as np
import pytest

from lrformer.core import ConfigError
from lrformer.data import cache, load_dataset
from lrformer.data.cache import open_prepared, write_arrays, write_atomically, write_manifest


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (12, 4, 4, 3), dtype=np.uint8), np.arange(12, dtype=np.uint8) % 3


def test_what_is_written_is_what_is_opened(tmp_path, arrays):
    x, y = arrays
    write_arrays(tmp_path, "train", x, y)
    write_manifest(tmp_path, "train", class_names=("a", "b", "c"), source="here")
    prepared = open_prepared(tmp_path, "train")
    np.testing.assert_array_equal(prepared.x, x)
    np.testing.assert_array_equal(prepared.y, y)
    assert isinstance(prepared.x, np.memmap)
    assert prepared.y.dtype == np.int64
    manifest = prepared.manifest
    assert (manifest.class_counts, manifest.source) == ((4, 4, 4), "here")
    np.testing.assert_allclose(manifest.mean, (x / 255).mean(axis=(0, 1, 2)), atol=1e-12)
    np.testing.assert_allclose(manifest.std, (x / 255).std(axis=(0, 1, 2)), atol=1e-12)


def test_a_folder_of_two_plain_arrays_gets_its_manifest(tmp_path, arrays):
    x, y = arrays
    np.save(tmp_path / "test-x.npy", x)
    np.save(tmp_path / "test-y.npy", y)
    prepared = open_prepared(tmp_path, "test")
    assert prepared.manifest.class_names == ("0", "1", "2")
    record = json.loads((tmp_path / "test.json").read_text())
    assert record["num_samples"] == 12
    assert record["checksum_x"].startswith("sha256:")
    assert open_prepared(tmp_path, "test").manifest == prepared.manifest


def test_a_read_only_folder_of_arrays_can_still_be_opened(tmp_path, arrays, monkeypatch):
    np.save(tmp_path / "test-x.npy", arrays[0])
    np.save(tmp_path / "test-y.npy", arrays[1])

    def refuse(path, write):
        raise PermissionError(path)

    monkeypatch.setattr(cache, "write_atomically", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert open_prepared(tmp_path, "test").manifest.num_samples == 12
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    with pytest.raises(PermissionError):
        open_prepared(tmp_path, "test")


def test_a_damaged_array_is_found_by_its_checksum_and_a_shorter_one_by_its_count(tmp_path, arrays):
    x, y = arrays
    write_arrays(tmp_path, "train", x, y)
    write_manifest(tmp_path, "train", class_names=("a", "b", "c"), source="here")
    changed = x.copy()
    changed[5, 0, 0, 0] ^= 1
    np.save(tmp_path / "train-x.npy", changed)
    with pytest.raises(ConfigError, match=r"train-x\.npy does not have the checksum"):
        open_prepared(tmp_path, "train")
    np.save(tmp_path / "train-x.npy", x[:-1])
    with pytest.raises(ConfigError, match=r"train-x\.npy has shape \(11, 4, 4, 3\)"):
        open_prepared(tmp_path, "train")
    (tmp_path / "train-x.npy").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"train-x\.npy cannot be read as an array"):
        open_prepared(tmp_path, "train")


def test_a_large_file_is_summed_over_blocks_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(5000))
    whole = cache.checksum(path)
    monkeypatch.setattr(cache, "WHOLE_FILE_BYTES", 4000)
    monkeypatch.setattr(cache, "BLOCK_BYTES", 16)
    monkeypatch.setattr(cache, "NUM_BLOCKS", 7)
    blocks = cache.checksum(path)
    assert whole.startswith("sha256:")
    assert blocks.startswith("sha256-blocks:")
    assert cache.checksum(path) == blocks
    path.write_bytes(path.read_bytes() + b"x")
    assert cache.checksum(path) != blocks


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 4, 4), np.uint8), np.zeros(3, np.int64), "test-x.npy: images have shape"),
        (np.zeros((3, 4, 4, 3)), np.zeros(3, np.int64), "test-x.npy: .* float64"),
        (np.zeros((3, 4, 4, 2), np.uint8), np.zeros(3, np.int64), "test-x.npy: .* 2 channels"),
        (np.zeros((3, 4, 4, 3), np.uint8), np.zeros(2, np.int64), "test-y.npy: there are 2 labels"),
        (np.zeros((3, 4, 4, 3), np.uint8), np.zeros(3), "test-y.npy: labels have shape"),
        (np.zeros((3, 4, 4, 3), np.uint8), np.array([0, 5, 1]), "label 5 of row 1 is outside 0..1"),
        (np.zeros((3, 4, 4, 3), np.uint8), np.array([0, 1, -1]), "label -1 of row 2"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_split_are_refused_by_the_name_of_their_file(tmp_path, x, y, message):
    np.save(tmp_path / "test-x.npy", x)
    np.save(tmp_path / "test-y.npy", y)
    with pytest.raises(ConfigError, match=message):
        open_prepared(tmp_path, "test", class_names=("a", "b"))


def test_without_names_a_negative_label_is_said_to_be_one(tmp_path):
    np.save(tmp_path / "test-x.npy", np.zeros((3, 4, 4, 3), np.uint8))
    np.save(tmp_path / "test-y.npy", np.array([0, 1, -1]))
    with pytest.raises(ConfigError, match="label -1 of row 2 is negative; labels count from 0"):
        open_prepared(tmp_path, "test")


def test_a_manifest_that_is_none_is_named(tmp_path, arrays):
    write_arrays(tmp_path, "test", *arrays)
    (tmp_path / "test.json").write_text("{broken")
    with pytest.raises(ConfigError, match=r"test\.json is not a manifest"):
        open_prepared(tmp_path, "test")


def test_an_empty_set_is_refused(tmp_path):
    np.save(tmp_path / "train-x.npy", np.zeros((0, 4, 4, 3), dtype=np.uint8))
    np.save(tmp_path / "train-y.npy", np.zeros(0, dtype=np.int64))
    with pytest.raises(ConfigError, match=r"train-x\.npy is empty"):
        open_prepared(tmp_path, "train")


def test_the_way_out_of_a_damaged_array_depends_on_who_made_it(tmp_path, arrays):
    x, y = arrays
    write_arrays(tmp_path, "test", x, y)
    write_manifest(tmp_path, "test", class_names=("a", "b", "c"), source="image folder photos")
    images = tmp_path / "test-x.npy"
    images.write_bytes(images.read_bytes()[:90])
    with pytest.raises(ConfigError, match=r"test-x\.npy cannot be read .*; remove it, and it is"):
        open_prepared(tmp_path, "test")
    (tmp_path / "test.json").unlink()
    with pytest.raises(ConfigError, match=r"test-x\.npy cannot be read .*; save it as \.npy"):
        open_prepared(tmp_path, "test")


def test_a_manifest_in_another_encoding_is_named(tmp_path, arrays):
    write_arrays(tmp_path, "test", *arrays)
    (tmp_path / "test.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match=r"test\.json is not a manifest .*remove it"):
        open_prepared(tmp_path, "test")


def test_splits_of_a_folder_that_cannot_be_written_to_have_the_statistics_of_training(
    tmp_path, arrays, monkeypatch
):
    x, y = arrays
    for split, images in (("train", x), ("test", x // 4)):
        np.save(tmp_path / f"{split}-x.npy", images)
        np.save(tmp_path / f"{split}-y.npy", y)

    def refuse(path, write):
        raise PermissionError(path)

    monkeypatch.setattr(cache, "write_atomically", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    train, test = (load_dataset(tmp_path, split=split) for split in ("train+val", "test"))
    assert (test.mean, test.std) == (train.mean, train.std)
    np.testing.assert_allclose(train.mean, (x / 255).mean(axis=(0, 1, 2)))


def test_arrays_of_other_channels_than_the_set_they_are_named_after_have_their_own_statistics(
    tmp_path,
):
    gray = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    (tmp_path / "cifar10").mkdir()
    np.save(tmp_path / "cifar10" / "train-x.npy", gray)
    np.save(tmp_path / "cifar10" / "train-y.npy", np.arange(40) % 10)
    split = load_dataset(tmp_path / "cifar10", split="train+val")
    np.testing.assert_allclose(split.mean, [(gray / 255).mean()])
    assert split.class_names[0] == "airplane"


def test_labels_may_have_a_gap_where_the_classes_that_are_there_are_named(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), dtype=np.uint8)
    np.save(tmp_path / "train-x.npy", x)
    np.save(tmp_path / "train-y.npy", np.array([0, 1, 5])[np.arange(30) % 3])
    with pytest.raises(ConfigError, match="class '2' has no sample"):
        load_dataset(tmp_path)
    assert load_dataset(tmp_path, classes=(0, 1, 5)).class_names == ("0", "1", "5")
    with pytest.raises(ConfigError, match="class '3' has no sample"):
        load_dataset(tmp_path, classes=(0, 3))
