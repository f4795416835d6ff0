import numpy as np
import pytest

from lrformer.core import ConfigError
from lrformer.data import Split, two_moons
from lrformer.evaluation import Gallery, from_arrays, pick_images

PROBS = np.array([[0.9, 0.1], [0.55, 0.45], [0.2, 0.8], [0.99, 0.01], [0.3, 0.7]])
LABELS = np.array([0, 0, 0, 1, 1])


def _images(size=(4, 4), channels=3):
    x = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, *size, channels), np.uint8)
    return Split(
        name="squares/test",
        x=x,
        y=LABELS,
        class_names=("cat", "dog"),
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        files=tuple(f"/somewhere/{i}.png" for i in range(5)),
    )


def test_the_most_uncertain_and_the_most_confidently_wrong_images_are_picked_in_order():
    predictions = from_arrays(PROBS, LABELS, class_names=("cat", "dog"))
    gallery = pick_images(predictions, _images(), num_images=2)
    picked = [(entry.reason, entry.row) for entry in gallery.entries]
    assert picked == [
        ("most uncertain", 1),
        ("most uncertain", 4),
        ("most confidently wrong", 3),
        ("most confidently wrong", 2),
    ]
    assert [int(image[0, 0, 0]) for image in gallery.images] == [1, 4, 3, 2]
    worst = gallery.entries[2]
    assert (worst.predicted, worst.truth, worst.probability) == ("cat", "dog", 0.99)
    assert worst.file == "somewhere/3.png"


def test_of_an_unknown_set_the_most_trusted_images_are_picked():
    gallery = pick_images(from_arrays(PROBS, name="far"), _images(), num_images=2)
    assert [entry.row for entry in gallery.entries] == [3, 0]
    assert {entry.reason for entry in gallery.entries} == {"most confident on unknown data"}
    assert {entry.truth for entry in gallery.entries} == {None}


def test_a_gallery_comes_back_from_its_file(tmp_path):
    gallery = pick_images(from_arrays(PROBS, LABELS), _images((4, 6), 1))
    gallery.save(tmp_path / "g.npz")
    back = Gallery.load(tmp_path / "g.npz")
    assert back.entries == gallery.entries
    assert all(np.array_equal(a, b) for a, b in zip(back.images, gallery.images, strict=True))
    assert len(back.images) == 7


@pytest.mark.parametrize("channels", [1, 3])
def test_large_images_are_kept_small_in_their_proportions(channels):
    gallery = pick_images(from_arrays(PROBS, LABELS), _images((320, 640), channels), num_images=1)
    assert gallery.images[0].shape == (80, 160, channels)


def test_points_give_no_images_and_a_wrong_number_of_them_is_refused():
    points = two_moons(5)
    assert pick_images(from_arrays(PROBS, LABELS), points).entries == ()
    with pytest.raises(ConfigError, match="5 images but there are 4 predictions"):
        pick_images(from_arrays(PROBS[:4], LABELS[:4]), _images())
