"""Made outliers are made of the images they are given, and are none of them."""

import dataclasses

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError
from lrformer.data import Split, load_dataset
from lrformer.data.outliers import (
    OUTLIER_KINDS,
    check_outliers,
    make_input_outliers,
    make_noise,
    make_outliers,
)


@pytest.fixture(scope="module")
def digits() -> Split:
    return load_dataset("digits", split="val")


@pytest.mark.parametrize("kind", OUTLIER_KINDS)
def test_outliers_are_seeded_images_of_the_same_form_that_differ_from_their_origin(digits, kind):
    made, again = (make_outliers(digits, kind, seed=3) for _ in range(2))
    assert made.x.dtype == np.uint8
    assert made.x.shape == digits.x.shape
    assert np.array_equal(made.x, again.x)
    changed = (np.asarray(made.x) != np.asarray(digits.x)).any(axis=(1, 2, 3))
    assert changed.all()


def test_shuffling_moves_whole_blocks_and_loses_no_pixel(digits):
    made = np.asarray(make_outliers(digits, "shuffled").x)
    before = np.asarray(digits.x)
    assert np.array_equal(
        np.sort(made.reshape(len(made), -1)), np.sort(before.reshape(len(made), -1))
    )

    def blocks(images: np.ndarray) -> list[set[bytes]]:
        return [
            {image[r : r + 2, c : c + 2].tobytes() for r in range(0, 8, 2) for c in range(0, 8, 2)}
            for image in images
        ]

    assert blocks(made) == blocks(before)


def test_every_image_is_shuffled_in_an_order_of_its_own(digits):
    same = digits.take(np.zeros(20, dtype=np.int64))
    made = np.asarray(make_outliers(same, "shuffled").x)
    assert len(np.unique(made.reshape(20, -1), axis=0)) == 20


def test_a_mixed_image_is_halfway_to_one_of_another_class(digits):
    images = np.asarray(digits.x).astype(int)
    made = np.asarray(make_outliers(digits, "mixed").x).astype(int)
    for row in range(5):
        is_partner = (np.abs(made[row] - (images[row] + images) // 2) == 0).all(axis=(1, 2, 3))
        assert (is_partner & (digits.y != digits.y[row])).any()


@pytest.mark.parametrize("kind", ["shuffled", "mixed"])
def test_outliers_of_inputs_are_those_of_the_images_behind_them(digits, kind):
    images = torch.from_numpy(np.array(digits.x)).permute(0, 3, 1, 2)
    labels = torch.from_numpy(np.array(digits.y))
    made = make_input_outliers(images.double(), labels, kind, seed=3)
    assert made.dtype == torch.float64
    expected = torch.from_numpy(make_outliers(digits, kind, seed=3).x).permute(0, 3, 1, 2)
    assert torch.equal(made.floor().to(torch.uint8), expected)
    with pytest.raises(ConfigError, match=r"kind \('inverted'\) must be 'shuffled' or 'mixed'"):
        make_input_outliers(images.double(), labels, "inverted")


def test_inverting_twice_gives_the_image_back(digits):
    twice = make_outliers(make_outliers(digits, "inverted"), "inverted")
    assert np.array_equal(np.asarray(twice.x), np.asarray(digits.x))


def test_wrong_kinds_and_points_are_refused(digits):
    with pytest.raises(ConfigError, match="Did you mean 'shuffled'"):
        make_outliers(digits, "shufled")
    with pytest.raises(ConfigError, match="points, not images"):
        make_outliers(load_dataset("two_moons"), "mixed")


def test_noise_is_seeded_and_has_every_value_alike_often(digits):
    noise = make_noise(digits, seed=1)
    assert np.array_equal(noise.x, make_noise(digits, seed=1).x)
    assert not np.array_equal(noise.x, make_noise(digits, seed=2).x)
    assert noise.x.shape == digits.x.shape
    counts = np.bincount(np.asarray(noise.x).ravel(), minlength=256)
    expected = noise.x.size / 256
    # Poisson: six deviations around the mean hold all of 256 counts.
    assert np.abs(counts - expected).max() < 6 * expected**0.5


def test_what_no_outliers_can_be_made_of_is_told_before_any_is(digits):
    one_class = digits.take(np.flatnonzero(np.asarray(digits.y) == 3))
    small = dataclasses.replace(digits, x=np.asarray(digits.x)[:, :3])
    for check in (check_outliers, make_outliers):
        with pytest.raises(ConfigError, match="images of one class alone"):
            check(one_class, "mixed")
        with pytest.raises(ConfigError, match="images of 3 x 8 pixels have no 4 x 4 blocks"):
            check(small, "shuffled")
    with pytest.raises(ConfigError, match="points, not images"):
        make_noise(load_dataset("two_moons"))
