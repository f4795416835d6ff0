"""What is said of samples that the data hold more than once."""

import dataclasses

import numpy as np
import pytest

from lrformer.data import Split, load_dataset
from lrformer.training import doubles, train
from lrformer.training.doubles import warn_of_doubles
from tests.evaluation.made_run import write_image_folder
from tests.training.small import PLAIN, QUIET, small

FIRST = "sample 0 of mine/train ('cow') and"
SAME = "are the same image with two labels"
LOUD = dataclasses.replace(QUIET, quiet=False)


def split_of(samples: list[int], labels: list[int], name: str = "mine/train") -> Split:
    """Return images of one gray level each."""
    return Split(
        name=name,
        x=np.array(samples, dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((2, 2, 1), np.uint8),
        y=np.array(labels),
        class_names=("cat", "dog", "cow"),
        mean=(0.5,),
        std=(0.2,),
    )


@pytest.mark.parametrize(
    ("train_set", "val_set", "said"),
    [
        (([1, 2, 3, 4], [0, 1, 2, 0]), ([5, 6], [1, 2]), None),
        # Doubles of one label may stay.
        (([1, 1, 3, 3], [0, 0, 2, 2]), ([5, 6], [1, 2]), None),
        (
            ([1, 2, 3, 2], [0, 1, 2, 0]),
            ([5, 6], [1, 2]),
            "sample 1 of mine/train ('dog') and sample 3 of mine/train ('cat') are the same image with two labels;",
        ),
        (
            ([9, 2, 9, 2, 9, 7], [2, 1, 2, 0, 1, 0]),
            ([5, 5], [1, 2]),
            f"{FIRST} sample 4 of mine/train ('dog') {SAME}, and 2 more images have two labels;",
        ),
        (
            ([9, 2, 9, 2], [2, 1, 1, 0]),
            ([5, 6], [1, 2]),
            f"{FIRST} sample 2 of mine/train ('dog') {SAME}, and 1 more image has two labels;",
        ),
        (
            ([1, 2, 3, 4], [0, 1, 2, 0]),
            ([5, 0, 0], [1, 2, 0]),
            "sample 1 of mine/val ('cow') and sample 2 of mine/val ('cat')",
        ),
    ],
)
def test_the_same_image_with_two_labels_is_named_with_both_and_the_others_are_counted(
    train_set, val_set, said
):
    found = warn_of_doubles(split_of(*train_set), split_of(*val_set, name="mine/val"))
    if said is None:
        assert found == []
        return
    (warning,) = found
    assert warning.startswith(f"warning: {said}")


def test_an_image_that_was_cut_off_for_validation_with_another_label_is_named_too():
    both = warn_of_doubles(split_of([1, 2], [0, 1]), split_of([3, 2], [0, 2], name="mine/val"))
    assert "1 of 2 validation samples are trained on too" in both[0]
    assert "sample 1 of mine/train ('dog') and sample 1 of mine/val ('cow')" in both[1]


def test_large_data_are_not_compared(monkeypatch):
    splits = split_of([1, 1], [0, 1]), split_of([3, 2], [0, 2])
    monkeypatch.setattr(doubles, "MOST_BYTES_COMPARED", 16)
    assert len(warn_of_doubles(*splits)) == 1
    monkeypatch.setattr(doubles, "MOST_BYTES_COMPARED", 15)
    assert warn_of_doubles(*splits) == []


def test_samples_are_named_by_file_and_by_row_of_an_array_whatever_was_cut_off(tmp_path):
    folder = write_image_folder(tmp_path / "data")
    source, copy = folder / "train" / "blue" / "003.png", folder / "train" / "red" / "copy.png"
    copy.write_bytes(source.read_bytes())
    parts = [load_dataset(folder, split=name, root=tmp_path / "c") for name in ("train", "val")]
    (warning,) = warn_of_doubles(*parts)
    assert f"{source} ('blue') and {copy} ('red') are the same image" in warning
    place = tmp_path / "arrays"
    place.mkdir()
    x = np.arange(40, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 1), np.uint8)
    x[[7, 31]] = 200
    np.save(place / "train-x.npy", x)
    np.save(place / "train-y.npy", np.arange(40) // 20)
    parts = [load_dataset(place, split=name, val_fraction=0.4) for name in ("train", "val")]
    (warning,) = (text for text in warn_of_doubles(*parts) if "two labels" in text)
    path = place / "train-x.npy"
    named = {f"{path} row 7 ('0')", f"{path} row 31 ('1')"}
    assert set(warning.split("warning: ")[1].split(" are the same")[0].split(" and ")) == named


def test_it_is_said_once_before_training(tmp_path, capsys):
    folder = write_image_folder(tmp_path / "data")
    blue, red = folder / "train" / "blue", folder / "train" / "red"
    for number in range(3):
        (red / f"copy-{number}.png").write_bytes((blue / f"00{number}.png").read_bytes())
    config = small(
        PLAIN, data=str(folder), root=str(tmp_path / "c"), classes=None, epochs=1, batch_size=8
    )
    train(config, tmp_path / "run", runtime=LOUD)
    said = capsys.readouterr().err
    assert said.count("are the same image with two labels, and 2 more images have two labels") == 1
    assert said.index("two labels") < said.index("epoch 1")
    train(config, tmp_path / "quiet", runtime=QUIET)
    assert capsys.readouterr().err == ""
