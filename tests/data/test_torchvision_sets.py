import hashlib
import pickle

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torchvision import datasets

from lrformer.core import ConfigError
from lrformer.data import load_dataset


def _md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def _write_cifar(folder, monkeypatch, reader, *, label_key, names_key, names, num_classes):
    """Write two training files and one test file as CIFAR's authors do, and make torchvision expect them."""
    base = folder / reader.base_folder
    base.mkdir(parents=True)
    rng = np.random.default_rng(0)
    listed, images = [], []
    for file in ("one", "two", "three"):
        data = rng.integers(0, 256, (num_classes * 2, 3072), dtype=np.uint8)
        labels = [k % num_classes for k in range(num_classes * 2)]
        (base / file).write_bytes(pickle.dumps({"data": data, label_key: labels}, protocol=2))
        listed.append([file, _md5(base / file)])
        images.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    (base / "meta").write_bytes(pickle.dumps({names_key: names}, protocol=2))
    monkeypatch.setattr(reader, "train_list", listed[:2])
    monkeypatch.setattr(reader, "test_list", listed[2:])
    meta = {"filename": "meta", "key": names_key, "md5": _md5(base / "meta")}
    monkeypatch.setattr(reader, "meta", meta)
    return np.concatenate(images[:2]), images[2]


@pytest.mark.parametrize(
    ("name", "reader", "label_key", "num_classes"),
    [("cifar10", datasets.CIFAR10, "labels", 10), ("cifar100", datasets.CIFAR100, "fine_labels", 100)],
)  # fmt: skip
def test_cifar_is_read_from_the_official_files_once_and_then_from_arrays(
    tmp_path, monkeypatch, name, reader, label_key, num_classes
):
    names = [str(k) for k in range(num_classes)]
    official = tmp_path / name / "official"
    train_x, test_x = _write_cifar(official, monkeypatch, reader, label_key=label_key,
        names_key="names", names=names, num_classes=num_classes)  # fmt: skip
    train = load_dataset(name, split="train+val", root=tmp_path, download=False)
    np.testing.assert_array_equal(train.x, train_x)
    np.testing.assert_array_equal(train.y, np.arange(num_classes * 4) % num_classes)
    assert len(train.class_names) == num_classes
    monkeypatch.setattr(reader, "train_list", [])
    again = load_dataset(name, split="train+val", root=tmp_path, download=False)
    np.testing.assert_array_equal(again.x, train_x)
    test = load_dataset(name, split="test", root=tmp_path, download=False)
    np.testing.assert_array_equal(test.x, test_x)
    assert test.mean == train.mean


def test_cifar_files_with_another_checksum_are_never_unpickled(tmp_path, monkeypatch):
    _write_cifar(tmp_path / "cifar10" / "official", monkeypatch, datasets.CIFAR10,
        label_key="labels", names_key="names", names=["a"], num_classes=10)  # fmt: skip
    (tmp_path / "cifar10" / "official" / "cifar-10-batches-py" / "one").write_bytes(b"evil")
    with pytest.raises(ConfigError, match=r"'cifar10' could not be read .*prepared arrays"):
        load_dataset("cifar10", root=tmp_path, download=False)


def test_svhn_is_read_with_zero_for_the_digit_that_its_files_call_ten(tmp_path, monkeypatch):
    official = tmp_path / "svhn" / "official"
    official.mkdir(parents=True)
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
    y = (np.arange(20) % 10 + 1)[:, None].astype(np.uint8)
    savemat(official / "small.mat", {"X": x, "y": y})
    listed = {"test": ["nowhere", "small.mat", _md5(official / "small.mat")]}
    monkeypatch.setattr(datasets.SVHN, "split_list", listed)
    test = load_dataset("svhn", split="test", root=tmp_path, download=False)
    np.testing.assert_array_equal(test.x, x.transpose(3, 0, 1, 2))
    np.testing.assert_array_equal(test.y, np.where(y[:, 0] == 10, 0, y[:, 0]))


def test_imagenet_is_scaled_from_its_files_and_tests_on_the_official_validation_set(
    tmp_path, write_image
):
    official = tmp_path / "imagenet" / "official"
    for split in ("train", "val"):
        for number, wnid in enumerate(("n01", "n02")):
            for image in range(3):
                write_image(official / split / wnid / f"{image}.png",
                            seed=10 * number + image + (split == "val") * 50, side=20 + image,
                            mode="L" if image == 2 else "RGB")  # fmt: skip
    torch.save(({"n01": ("tench", "fish"), "n02": ("hen",)}, ["n01"]), official / "meta.bin")
    train = load_dataset("imagenet", split="train+val", root=tmp_path, image_size=16, channels=3)
    test = load_dataset("imagenet", split="test", root=tmp_path, image_size=16, channels=3)
    assert train.class_names == test.class_names == ("tench", "hen")
    assert train.x.shape == test.x.shape == (6, 16, 16, 3)
    assert train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert test.files is not None
    assert all("/val/" in name for name in test.files)
    with pytest.raises(ConfigError, match=r"image_size \(224\) is for image files"):
        load_dataset("imagenet", split="test", root=tmp_path, image_size=224)
    # A preparation that was stopped after the arrays still knows what their labels stand for.
    (tmp_path / "imagenet" / "test.json").unlink()
    again = load_dataset("imagenet", split="test", root=tmp_path, image_size=16, channels=3)
    assert again.class_names == test.class_names
    np.testing.assert_array_equal(again.y, test.y)


def test_classes_of_one_name_are_told_apart(tmp_path, write_image):
    official = tmp_path / "imagenet" / "official"
    for wnid in ("n01", "n02", "n03", "n04"):
        write_image(official / "val" / wnid / "0.png", seed=0, side=20, mode="RGB")
    names = {"n01": ("crane",), "n02": ("hen",), "n03": ("crane",), "n04": ("crane",)}
    torch.save((names, ["n01"]), official / "meta.bin")
    test = load_dataset("imagenet", split="test", root=tmp_path, image_size=16, channels=3)
    assert test.class_names == ("crane", "hen", "crane 2", "crane 3")


def test_a_set_that_is_nowhere_says_where_to_put_it(tmp_path):
    with pytest.raises(ConfigError, match=f"prepared arrays .* into {tmp_path / 'svhn'}"):
        load_dataset("svhn", root=tmp_path, download=False)
