import errno
import itertools
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from lrformer.core import ConfigError
from lrformer.data import (
    cache,
    file_split,
    folder_layout,
    list_splits,
    load_dataset,
    preparation_lines,
    read_image,
)
from lrformer.data.file_split import read_file_names

SKIP = "Pass skip_unreadable=True (--skip-unreadable of train, evaluate and reproduce) to leave out what cannot be read."


def _pixels(path):
    return np.asarray(Image.open(path))


def test_a_folder_becomes_arrays_that_hold_its_files_in_order(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", splits=("train", "val", "test"))
    train = load_dataset(folder, split="train", root=tmp_path / "cache")
    assert train.class_names == ("cat", "dog")
    assert train.x.shape == (8, 8, 8, 3)
    assert train.files is not None
    for image, label, name in zip(train.x, train.y, train.files, strict=True):
        np.testing.assert_array_equal(image, _pixels(name))
        assert f"train/{train.class_names[label]}/" in name
    val = load_dataset(folder, split="val", root=tmp_path / "cache")
    assert val.files is not None
    assert all("/val/" in name for name in val.files)
    assert (val.mean, val.std) == (train.mean, train.std)
    np.testing.assert_allclose(train.mean, (np.asarray(train.x) / 255).mean(axis=(0, 1, 2)))
    assert list_splits(folder) == ["train", "val", "train+val", "test"]


def test_without_a_val_directory_validation_is_cut_from_train(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", splits=("train",), count=10)
    parts = [load_dataset(folder, split=s, root=tmp_path / "c", val_fraction=0.2) for s in
             ("train", "val", "train+val")]  # fmt: skip
    assert [len(part) for part in parts] == [16, 4, 20]
    files = [set(part.files or ()) for part in parts]
    assert files[0] | files[1] == files[2]
    assert not files[0] & files[1]


def test_ood_directories_and_plain_directories_are_splits_without_classes(
    tmp_path, write_folder, write_image
):
    folder = write_folder(tmp_path / "pets")
    for number in range(3):
        write_image(folder / "ood-cars" / "deep" / f"{number}.png", seed=100 + number)
    train = load_dataset(folder, root=tmp_path / "c")
    cars = load_dataset(folder, split="ood-cars", root=tmp_path / "c")
    assert (len(cars), cars.class_names) == (3, ("ood-cars",))
    assert cars.mean == train.mean
    plain = load_dataset(folder / "ood-cars", split="test", root=tmp_path / "c")
    np.testing.assert_array_equal(plain.x, cars.x)
    with pytest.raises(ConfigError, match=r"no training set, .* train-x\.npy and train-y\.npy"):
        load_dataset(folder / "ood-cars", split="train", root=tmp_path / "c")
    with pytest.raises(ConfigError, match="Did you mean 'ood-cars'"):
        load_dataset(folder, split="ood-car", root=tmp_path / "c")


def test_images_of_different_sizes_need_image_size(tmp_path, write_folder, write_image):
    folder = write_folder(tmp_path / "pets")
    odd = write_image(folder / "train" / "cat" / "9.png", seed=99, side=12)
    with pytest.raises(ConfigError, match=rf"{odd}: the image is 12x12 pixels .*image_size"):
        load_dataset(folder, root=tmp_path / "c")
    train = load_dataset(folder, root=tmp_path / "c", image_size=6)
    assert train.x.shape == (9, 6, 6, 3)


def test_wide_images_lose_their_sides_and_not_their_shape(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    middle = read_image(tmp_path / "wide.png", image_size=10)
    np.testing.assert_array_equal(middle, np.full((10, 10, 3), 200))


def test_a_corrupt_image_is_named(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets")
    bad = folder / "train" / "dog" / "2.png"
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(ConfigError, match=f"{bad}: not a readable image .*replace it or remove it"):
        load_dataset(folder, root=tmp_path / "c")


def test_all_that_is_wrong_is_named_at_once(tmp_path, write_folder, monkeypatch):
    monkeypatch.setattr(file_split, "ROWS_AT_A_TIME", 3)
    monkeypatch.setattr(file_split, "NUM_NAMED", 2)
    folder = write_folder(tmp_path / "pets")
    files = [folder / "train" / "cat" / f"{n}.png" for n in (1, 3)]
    files += [folder / "train" / "dog" / f"{n}.png" for n in (0, 3)]
    for path in files:
        path.write_text("not an image")
    first, *others = map(str, files)
    with pytest.raises(ConfigError) as refused:
        load_dataset(folder, root=tmp_path / "c")
    assert str(refused.value) == (
        f"{first}: not a readable image; replace it or remove it. These cannot be taken either: "
        f"{others[0]}, {others[1]} and 1 more. {SKIP}"
    )
    for path in files:
        path.unlink()
    assert len(load_dataset(folder, root=tmp_path / "c")) == 4


@pytest.mark.parametrize("corrupt", ["0.png", "2.png"])
def test_files_of_other_channels_have_their_way_out_beside_a_corrupt_one(
    tmp_path, write_folder, write_image, corrupt
):
    folder = write_folder(tmp_path / "pets")
    cats, dogs = folder / "train" / "cat", folder / "train" / "dog"
    (cats / corrupt).write_text("not an image")
    gray = write_image(cats / "9-gray.png", seed=50, mode="L")
    clear = write_image(dogs / "9-clear.png", seed=51, mode="RGBA")
    small = write_image(dogs / "9-small.png", seed=52, side=4)
    first = cats / ("1.png" if corrupt == "0.png" else "0.png")
    with pytest.raises(ConfigError) as refused:
        load_dataset(folder, root=tmp_path / "c")
    assert str(refused.value) == (
        f"{cats / corrupt}: not a readable image; replace it or remove it. {SKIP} "
        f"{small}: the image is 4x4 pixels but {first} is 8x8; pass image_size (--image-size) to scale them all. "
        f"{gray}: the image has 1 channels but {first} has 3; pass channels=3 (--channels 3) to convert them all to RGB, "
        f"or 1 to gray. These cannot be taken either: {clear}."
    )
    (cats / corrupt).unlink()
    assert len(load_dataset(folder, root=tmp_path / "c", channels=3, image_size=8)) == 10


def test_of_a_folder_in_which_nothing_can_be_read_the_first_files_are_looked_at(
    tmp_path, write_folder, monkeypatch
):
    monkeypatch.setattr(file_split, "ROWS_AT_A_TIME", 3)
    folder = write_folder(tmp_path / "pets")
    for path in folder.rglob("*.png"):
        path.write_text("not an image")
    names = [str(folder / "train" / "cat" / f"{number}.png") for number in range(3)]
    with pytest.raises(ConfigError) as refused:
        load_dataset(folder, root=tmp_path / "c")
    assert str(refused.value) == (
        f"{names[0]}: not a readable image; replace it or remove it. These cannot be taken either: {names[1]}, {names[2]}. "
        f"{SKIP}"
    )


def test_a_class_that_may_not_be_read_is_not_called_empty(tmp_path, write_folder, monkeypatch):
    folder = write_folder(tmp_path / "pets")
    monkeypatch.setattr(folder_layout.os, "access", lambda path, _: path.name != "dog")
    with pytest.raises(ConfigError, match="dog may not be read"):
        load_dataset(folder, root=tmp_path / "c")


def test_a_wrong_number_of_channels_is_named_and_can_be_converted(
    tmp_path, write_folder, write_image
):
    folder = write_folder(tmp_path / "pets")
    gray = write_image(folder / "train" / "dog" / "gray.png", seed=50, mode="L")
    with pytest.raises(ConfigError, match=f"{gray}: the image has 1 channels"):
        load_dataset(folder, root=tmp_path / "c")
    assert load_dataset(folder, root=tmp_path / "c", channels=3).x.shape == (9, 8, 8, 3)
    assert load_dataset(folder, root=tmp_path / "c", channels=1).x.shape == (9, 8, 8, 1)
    alpha = write_image(tmp_path / "alpha.png", seed=1, mode="RGBA")
    with pytest.raises(ConfigError, match=f"{alpha}: the image has mode RGBA, 4 channels"):
        read_image(alpha)


@pytest.mark.parametrize("channels", [None, 1, 3])
def test_gray_of_sixteen_bits_is_the_gray_of_eight(tmp_path, channels):
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    Image.fromarray(gray).save(tmp_path / "narrow.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(tmp_path / "wide.png")
    with Image.open(tmp_path / "wide.png") as wide:
        assert wide.mode.startswith("I;16")
    narrow, wide = (
        read_image(tmp_path / f"{name}.png", channels=channels) for name in ("narrow", "wide")
    )
    np.testing.assert_array_equal(wide, narrow)
    Image.fromarray(gray.astype(np.float32)).save(tmp_path / "numbers.tiff")
    with pytest.raises(ConfigError, match="mode F, numbers of 32 bits"):
        read_image(tmp_path / "numbers.tiff", channels=channels)


def test_an_empty_class_one_class_and_a_strange_class_are_named(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets")
    (folder / "train" / "bird").mkdir()
    with pytest.raises(ConfigError, match=f"{folder / 'train' / 'bird'} has no image"):
        load_dataset(folder, root=tmp_path / "c")
    (folder / "train" / "bird").rmdir()
    (folder / "val" / "dog").rename(folder / "val" / "dogs")
    with pytest.raises(ConfigError, match=r"val/dogs is a class that .* Did you mean 'dog'"):
        load_dataset(folder, root=tmp_path / "c")
    lonely = write_folder(tmp_path / "lonely", classes=("cat",))
    with pytest.raises(ConfigError, match=r"lonely/train has one class \('cat'\)"):
        load_dataset(lonely, root=tmp_path / "c")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty has no image"):
        load_dataset(tmp_path / "empty", split="test", root=tmp_path / "c")


def test_the_same_image_in_two_splits_is_named_every_time(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", splits=("train", "val", "test"))
    copy = folder / "test" / "dog" / "copy.png"
    copy.write_bytes((folder / "train" / "cat" / "1.png").read_bytes())
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=rf"{copy} \(test\) is the same image as .*cat/1\.png"
        ):
            load_dataset(folder, root=tmp_path / "c")
    copy.unlink()
    assert len(load_dataset(folder, root=tmp_path / "c")) == 8
    late = folder / "val" / "cat" / "late.png"
    late.write_bytes((folder / "train" / "dog" / "0.png").read_bytes())
    with pytest.raises(ConfigError, match=rf"{late} \(val\) is the same image as .*dog/0\.png"):
        load_dataset(folder, root=tmp_path / "c")


@pytest.mark.parametrize("num_named", [2, 10])
def test_every_image_that_is_in_two_splits_is_named_at_once(
    tmp_path, write_folder, monkeypatch, num_named
):
    monkeypatch.setattr(file_split, "NUM_NAMED", num_named)
    folder = write_folder(tmp_path / "pets", splits=("train", "val", "test"))

    def copy(source, target):
        (folder / target).write_bytes((folder / source).read_bytes())
        return str(folder / target)

    known = [str(folder / "train" / "cat" / f"{number}.png") for number in range(3)]
    double = copy("train/cat/0.png", "train/cat/9-double.png")
    val = [copy(f"train/cat/{number}.png", f"val/cat/copy-{number}.png") for number in range(2)]
    test = copy("train/cat/2.png", "test/dog/copy.png")
    copy("val/dog/0.png", "val/dog/double.png")  # in one split it may stay
    with pytest.raises(ConfigError) as refused:
        load_dataset(folder, root=tmp_path / "c")
    others = [
        f"{val[0]} (val) and {double} (train)",
        f"{val[1]} (val) and {known[1]} (train)",
        f"{test} (test) and {known[2]} (train)",
    ]
    left = " and 1 more" if num_named == 2 else ""
    assert str(refused.value) == (
        f"{val[0]} (val) is the same image as {known[0]} (train); a model must not be judged on what it was trained on. "
        f"Remove one of them. So are these: {', '.join(others[:num_named])}{left}."
    )
    for name in (*val, test):
        Path(name).unlink()
    assert len(load_dataset(folder, root=tmp_path / "c")) == 9


@pytest.mark.parametrize("channels", [0, 2, 4])
def test_channels_that_no_image_has_are_refused_once_before_a_file_is_read(
    tmp_path, write_folder, monkeypatch, channels
):
    folder = write_folder(tmp_path / "pets")
    monkeypatch.setattr(file_split, "read_image", None)
    with pytest.raises(ConfigError) as refused:
        load_dataset(folder, root=tmp_path / "c", channels=channels)
    assert str(refused.value) == f"channels ({channels}) must be 1 (gray) or 3 (RGB)."
    assert not (tmp_path / "c").exists()


def test_a_folder_that_changed_is_prepared_again_and_one_that_did_not_is_not(
    tmp_path, write_folder, write_image, monkeypatch
):
    folder = write_folder(tmp_path / "pets")
    load_dataset(folder, root=tmp_path / "c")
    with monkeypatch.context() as patch:
        patch.setattr(file_split, "read_image", None)
        assert len(load_dataset(folder, root=tmp_path / "c")) == 8
    write_image(folder / "train" / "cat" / "new.png", seed=77)
    assert len(load_dataset(folder, root=tmp_path / "c")) == 9


def test_an_interrupted_preparation_goes_on_where_it_stopped(tmp_path, write_folder, monkeypatch):
    folder = write_folder(tmp_path / "pets", splits=("train", "val"), count=10)
    monkeypatch.setattr(file_split, "ROWS_AT_A_TIME", 4)
    read, stopped = [], []

    def interrupted(path, **options):
        if len(stopped) < 1 and path.parts[-3:] == ("train", "cat", "9.png"):
            stopped.append(path)
            raise KeyboardInterrupt
        read.append(path)
        return read_image(path, **options)

    monkeypatch.setattr(file_split, "read_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_dataset(folder, root=tmp_path / "c")
    read.clear()
    train = load_dataset(folder, root=tmp_path / "c")
    again = {p.name for p in read if p.parts[-3:-1] == ("train", "cat")}
    # The first file is read for its shape; the blocks of four that were finished are not read again.
    assert again == {"0.png", "8.png", "9.png"}
    for image, name in zip(train.x, train.files or (), strict=True):
        np.testing.assert_array_equal(image, _pixels(name))


def _prepare(folder: str, root: str, results) -> None:
    split = load_dataset(folder, root=root)
    results.put((split.x.shape, int(np.asarray(split.x, dtype=np.int64).sum())))


def test_two_processes_that_prepare_one_folder_at_once_both_get_it(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", count=60)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_prepare, args=(str(folder), str(tmp_path / "c"), results))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert found[0] == found[1]
    assert found[0][0] == (120, 8, 8, 3)


def test_a_disk_without_room_is_said_before_anything_is_written(
    tmp_path, write_folder, monkeypatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = write_folder(tmp_path / "pets")
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"no room for .* GB of prepared images .*--root"):
        load_dataset(folder, root=tmp_path / "c")
    assert not list((tmp_path / "c").rglob("*.partial"))
    monkeypatch.undo()
    assert len(load_dataset(folder, root=tmp_path / "c")) == 8


def test_no_kind_of_image_is_left_out_without_a_word(tmp_path, write_folder, write_image):
    folder = write_folder(tmp_path / "pets", splits=("train", "val"))
    write_image(folder / "train" / "cat" / "moving.gif", seed=50)
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    assert len(load_dataset(folder, root=tmp_path / "c", channels=3)) == 9
    (folder / "train" / "dog" / "phone.heic").write_bytes(b"nobody reads this")
    with pytest.raises(ConfigError, match=r"phone\.heic"):
        load_dataset(folder, root=tmp_path / "c", channels=3)


def test_a_split_that_is_missing_names_each_that_is_there_once(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", splits=("train", "val", "test"))
    with pytest.raises(ConfigError, match=r"It has: train, val, test\.$"):
        load_dataset(folder, split="nowhere", root=tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"caf\xe9.png", "caf\\udce9.png"),
        ("a\u2028b.png".encode(), "a\\u2028b.png"),
        (b"a\x1b[31m\tb.png", "a\\x1b[31m\\tb.png"),
        ("写真\u202f1.png".encode(), "写真\u202f1.png"),
        (b"a\nb.png", "a\\nb.png"),
        (b"a\rb.png", "a\\rb.png"),
    ],
)
def test_files_may_have_any_name(tmp_path, write_folder, name, shown):
    folder = write_folder(tmp_path / "pets", splits=("train", "test"))
    first = os.fsencode(min((folder / "train" / "cat").iterdir()))
    os.rename(first, os.path.join(os.path.dirname(first), name))  # noqa: PTH104, PTH118, PTH120
    train = load_dataset(folder, split="train", root=tmp_path / "cache")
    assert train.files is not None
    assert len(train.files) == len(train)
    assert sum(file.endswith(f"/cat/{shown}") for file in train.files) == 1
    assert all(file.encode().decode() == file for file in train.files)


def test_a_class_may_have_any_name(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", splits=("train", "test"))
    for split in ("train", "test"):
        place = os.fsencode(folder / split)
        os.rename(os.path.join(place, b"dog"), os.path.join(place, b"d\xf6g"))  # noqa: PTH104, PTH118
    test = load_dataset(folder, split="test", root=tmp_path / "cache")
    assert test.class_names == ("cat", "d\\udcf6g")
    assert test.files is not None
    assert all(
        test.class_names[label] in name for label, name in zip(test.y, test.files, strict=True)
    )


def test_a_training_image_among_the_unknown_is_refused(tmp_path, write_folder, write_image):
    folder = write_folder(tmp_path / "pets")
    write_image(folder / "ood-cars" / "new.png", seed=100)
    assert len(load_dataset(folder, split="ood-cars", root=tmp_path / "c")) == 1
    known = folder / "train" / "cat" / "0.png"
    (folder / "ood-cars" / "copy.png").write_bytes(known.read_bytes())
    with pytest.raises(ConfigError, match="is the same image as"):
        load_dataset(folder, split="ood-cars", root=tmp_path / "c")
    assert len(load_dataset(folder, root=tmp_path / "c")) == 8


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets")
    (tmp_path / "file").touch()
    said = rf"prepared images are kept in {tmp_path}/file/c/pets-\w+, .* \(Not a directory\); .* \(--root FOLDER\)"
    with pytest.raises(ConfigError, match=said):
        load_dataset(folder, root=tmp_path / "file" / "c")


def test_of_a_read_only_cache_what_is_prepared_is_read_and_the_rest_is_refused(
    tmp_path, write_folder, write_image, monkeypatch
):
    folder = write_folder(tmp_path / "pets")
    write_image(folder / "ood-cars" / "0.png", seed=100)
    load_dataset(folder, root=tmp_path / "c")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(cache.FileLock, "acquire", refuse)
    monkeypatch.setattr(cache, "write_atomically", refuse)
    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    assert len(load_dataset(folder, root=tmp_path / "c")) == 8
    assert len(load_dataset(folder, split="val", root=tmp_path / "c")) == 8
    with pytest.raises(ConfigError, match=r"cannot be written to \(Read-only file system\)"):
        load_dataset(folder, split="ood-cars", root=tmp_path / "c")


def test_a_long_preparation_says_how_far_it_is_and_a_short_one_nothing(
    tmp_path, write_folder, monkeypatch, capsys
):
    folder = write_folder(tmp_path / "pets", splits=("train",), count=10)
    load_dataset(folder, root=tmp_path / "short")
    assert capsys.readouterr() == ("", "")
    clock = itertools.count(step=4.0)
    monkeypatch.setattr(preparation_lines, "time", SimpleNamespace(monotonic=clock.__next__))
    load_dataset(folder, root=tmp_path / "long")
    # The third look is the first after 5 seconds, and every eighth after it the first after 30.
    lines = [f"preparing image folder pets/train: {done} of 20 images\n" for done in (2, 10, 18)]
    assert capsys.readouterr() == ("", "".join(lines))
    with preparation_lines.show_preparation(False):
        load_dataset(folder, root=tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    load_dataset(folder, root=tmp_path / "shown again")
    assert capsys.readouterr() == ("", "".join(lines))


def test_directories_of_classes_without_a_train_get_the_way_to_one(tmp_path, write_folder):
    folder = write_folder(tmp_path / "photos")
    with pytest.raises(ConfigError, match=rf"give the folder above it: {folder}\."):
        load_dataset(str(folder / "train"), root=tmp_path)
    flat = (folder / "train").rename(tmp_path / "flat")
    words = rf"its directories \(cat, dog\) are classes, move them into {flat / 'train'}\."
    with pytest.raises(ConfigError, match=words):
        load_dataset(str(flat), root=tmp_path)


def test_a_list_of_files_in_another_encoding_is_named(tmp_path, write_folder):
    folder = write_folder(tmp_path / "photos")
    load_dataset(str(folder), root=tmp_path / "cache")
    (names,) = (tmp_path / "cache").glob("*/train-files.txt")
    names.write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match=r"train-files\.txt is damaged .*prepared again"):
        read_file_names(names.parent, "train")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "LAB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_of_any_mode_is_converted(tmp_path, mode, channels):
    draw = np.random.default_rng(0)
    color = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    if mode == "LAB":
        image = Image.frombytes("LAB", (8, 8), draw.integers(0, 256, 192, dtype=np.uint8).tobytes())
    else:
        image = color.convert(mode)
    image.save(tmp_path / "image.tif")
    assert read_image(tmp_path / "image.tif", channels=channels).shape == (8, 8, channels)


def test_hidden_directories_below_a_class_are_not_looked_into(tmp_path, write_folder, write_image):
    folder = write_folder(tmp_path / "pets")
    write_image(folder / "train" / "cat" / ".ipynb_checkpoints" / "0.png", seed=99)
    write_image(folder / "train" / "cat" / "kittens" / "0.png", seed=100)
    split = load_dataset(folder, root=tmp_path / "c")
    assert len(split) == 9
    assert not any("checkpoints" in name for name in split.files)


def test_directories_that_are_links_are_followed_and_circles_are_not(
    tmp_path, write_folder, write_image
):
    folder = write_folder(tmp_path / "pictures")
    before = len(load_dataset(folder, root=tmp_path / "cache", split="train").y)
    elsewhere = tmp_path / "elsewhere"
    write_image(elsewhere / "more.png", seed=99)
    kind = sorted((folder / "train").iterdir())[0]
    (kind / "more").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(kind)
    assert len(load_dataset(folder, root=tmp_path / "cache", split="train").y) == before + 1


def test_a_folder_with_a_name_as_long_as_there_can_be_is_prepared(tmp_path, write_folder):
    for name in ("n" * 250, "\u6570" * 80):
        folder = write_folder(tmp_path / name)
        split = load_dataset(folder, root=tmp_path / "cache", split="train")
        assert split.name == f"{name}/train"
        assert len(split.y)
