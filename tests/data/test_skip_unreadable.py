import errno
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lrformer.core import ConfigError
from lrformer.data import cache, file_split, image_file, load_dataset, preparation_lines, read_image
from lrformer.data.image_file import UnreachedImageError, UnreadableImageError


@pytest.fixture
def folder(tmp_path, write_folder):
    """Return a folder of ten images a class, of which the training set has three that cannot be read."""
    folder = write_folder(tmp_path / "pets", splits=("train", "val"), count=10)
    for name in BROKEN:
        (folder / "train" / name).write_bytes(b"no image")
    return folder


BROKEN = ("cat/0.png", "cat/9.png", "dog/4.png")


@pytest.fixture(autouse=True)
def said(monkeypatch):
    """Let every test see what is said once in a process."""
    monkeypatch.setattr(preparation_lines, "_said", set())


def load(folder, **options):
    options = {"root": folder.parent / "cache", "skip_unreadable": True, **options}
    return load_dataset(folder, **options)


def test_what_cannot_be_decoded_is_left_out_and_said_once(folder, capsys):
    with pytest.raises(ConfigError, match=r"Pass skip_unreadable=True \(--skip-unreadable"):
        load(folder, skip_unreadable=False)
    for _ in range(2):
        train = load(folder)
    names = [str(path) for path in sorted((folder / "train").rglob("*.png"))]
    broken = [str(folder / "train" / name) for name in BROKEN]
    assert train.files == tuple(name for name in names if name not in broken)
    assert train.x.shape == (17, 8, 8, 3)
    for image, label, name in zip(train.x, train.y, train.files, strict=True):
        np.testing.assert_array_equal(image, np.asarray(Image.open(name)))
        assert Path(name).parent.name == train.class_names[label]
    expected = f"warning: pets/train: 3 of 20 images cannot be read and are left out, the first is {broken[0]}\n"
    assert capsys.readouterr() == ("", expected)
    assert len(load(folder, split="val")) == 20
    assert capsys.readouterr() == ("", "")


def test_what_is_kept_is_what_a_folder_without_the_broken_files_has(folder, tmp_path):
    train = load(folder)
    for name in BROKEN:
        (folder / "train" / name).unlink()
    clean = load(folder, root=tmp_path / "other", skip_unreadable=False)
    assert train.digest == clean.digest
    assert (train.mean, train.std) == (clean.mean, clean.std)
    path = next((tmp_path / "cache").glob("*/train-x.npy"))
    assert path.read_bytes() == next((tmp_path / "other").glob("*/train-x.npy")).read_bytes()


def test_of_a_folder_in_which_all_can_be_read_one_cache_serves_both(
    tmp_path, write_folder, monkeypatch
):
    folder = write_folder(tmp_path / "pets")
    first = load(folder, skip_unreadable=False)
    (there,) = (tmp_path / "cache").glob("pets-*")
    mark = json.loads((there / "train.json").read_text())["fingerprint"]
    monkeypatch.setattr(file_split, "read_image", None)
    assert load(folder).digest == load(folder, skip_unreadable=False).digest == first.digest
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [there.name]
    assert json.loads((there / "train.json").read_text())["fingerprint"] == mark


def test_what_was_prepared_with_files_left_out_does_not_serve_who_wants_all(folder, monkeypatch):
    load(folder)
    for _ in range(2):
        with pytest.raises(ConfigError, match="not a readable image"):
            load(folder, skip_unreadable=False)
    # And the refusal does not cost what was prepared.
    monkeypatch.setattr(file_split, "read_image", None)
    assert len(load(folder)) == 17


def test_a_file_that_was_repaired_is_taken_again_and_without_a_word(folder, write_image, capsys):
    load(folder)
    for number, name in enumerate(BROKEN):
        write_image(folder / "train" / name, seed=500 + number)
    capsys.readouterr()
    assert len(load(folder)) == 20
    assert capsys.readouterr() == ("", "")
    assert len(load(folder, skip_unreadable=False)) == 20


@pytest.mark.parametrize("stop_at", ["train/cat/7.png", "train/dog/7.png"])
def test_an_interrupted_preparation_that_leaves_files_out_goes_on(folder, monkeypatch, stop_at):
    whole = load(folder, root=folder.parent / "other")
    monkeypatch.setattr(file_split, "ROWS_AT_A_TIME", 4)
    with monkeypatch.context() as patch:

        def stop(path, **options):
            if path == folder / stop_at:
                raise KeyboardInterrupt
            return read_image(path, **options)

        patch.setattr(file_split, "read_image", stop)
        with pytest.raises(KeyboardInterrupt):
            load(folder)
    read = []

    def count(path, **options):
        read.append(path)
        return read_image(path, **options)

    monkeypatch.setattr(file_split, "read_image", count)
    train = load(folder)
    assert folder / "train" / "cat" / "3.png" not in read
    assert (train.digest, len(train.files)) == (whole.digest, 17)


@pytest.mark.parametrize("is_refused_between", [False, True])
def test_an_array_that_was_shortened_before_a_crash_is_taken_as_it_is(
    folder, monkeypatch, is_refused_between
):
    whole = load(folder, root=folder.parent / "other")

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(file_split, "labels_path", crash)
        with pytest.raises(KeyboardInterrupt):
            load(folder)
    if is_refused_between:
        # One with files left out is no beginning for who wants all.
        with pytest.raises(ConfigError, match="not a readable image"):
            load(folder, skip_unreadable=False)
    assert load(folder).digest == whole.digest


def test_only_what_cannot_be_decoded_is_left_out(folder, write_image):
    small = write_image(folder / "train" / "dog" / "small.png", seed=70, side=4)
    with pytest.raises(ConfigError) as refused:
        load(folder)
    assert str(refused.value).startswith(f"{small}: the image is 4x4 pixels but")
    assert "not a readable image" not in str(refused.value)
    small.unlink()
    gray = write_image(folder / "train" / "cat" / "gray.png", seed=71, mode="L")
    with pytest.raises(ConfigError, match=f"{gray}: the image has 1 channels"):
        load(folder)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), UnreachedImageError),
        (OSError(errno.EIO, "Input/output error"), UnreachedImageError),
        (MemoryError(), UnreachedImageError),
        (OSError(errno.EINVAL, "Invalid argument"), UnreadableImageError),
        (OSError("image file is truncated"), UnreadableImageError),
        (SyntaxError("broken PNG file"), UnreadableImageError),
    ],
)
def test_a_disk_or_a_memory_that_fails_says_nothing_of_an_image(
    folder, monkeypatch, write_image, error, kind
):
    for name in BROKEN:
        write_image(folder / "train" / name, seed=len(name))
    bad = folder / "train" / "cat" / "5.png"
    load_image = Image.open

    def fail(path):
        if path == bad:
            raise error
        return load_image(path)

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(kind, match=str(bad)):
        image_file.read_image(bad)
    if kind is UnreadableImageError:
        assert str(bad) not in load(folder).files
        return
    with pytest.raises(ConfigError, match=f"^{bad}: the file cannot be read") as refused:
        load(folder)
    assert "skip_unreadable" not in str(refused.value)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_class_of_which_nothing_is_left_is_refused_every_time(folder, split):
    for path in (folder / split / "dog").iterdir():
        path.write_bytes(b"no image")
    for _ in range(2):
        with pytest.raises(
            ConfigError,
            match=rf"pets/{split}: class 'dog' has no image that can be read \(.*/0.png",
        ):
            load(folder)


def test_unknown_images_are_skipped_alike_and_a_folder_without_any_is_refused(
    folder, write_image, capsys
):
    write_image(folder / "ood-cars" / "new.png", seed=600)
    (folder / "ood-cars" / "broken.png").write_bytes(b"")
    load(folder)
    assert len(load(folder, split="ood-cars")) == 1
    assert "pets/ood-cars: 1 of 2 images cannot be read" in capsys.readouterr().err
    (folder / "ood-cars" / "new.png").unlink()
    with pytest.raises(ConfigError, match=r"ood-cars: no image in it can be read\. .*broken\.png"):
        load(folder, split="ood-cars")


def test_where_nothing_can_be_skipped_the_setting_is_refused(tmp_path, random_split):
    with pytest.raises(ConfigError, match=r"skip_unreadable is for a folder .* 'digits' is none"):
        load_dataset("digits", skip_unreadable=True)
    cache.write_arrays(tmp_path / "mine", "train", random_split().x, random_split().y)
    with pytest.raises(ConfigError, match="skip_unreadable is for a folder of image files"):
        load_dataset(tmp_path / "mine", skip_unreadable=True)


def test_where_lines_are_not_shown_this_one_is_shown_later(folder, capsys):
    with preparation_lines.show_preparation(False):
        load(folder)
    assert capsys.readouterr().err == ""
    load(folder)
    assert capsys.readouterr().err.count("left out") == 1
