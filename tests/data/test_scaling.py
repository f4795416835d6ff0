"""Images on the device are cut and scaled as image files are when they are read."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from lrformer.data import DeviceBatches, read_image
from lrformer.data.scaling import fit_square


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_the_center_square_is_kept_to_the_bit_where_nothing_is_scaled(shape):
    images = torch.arange(2 * 3 * 60.0).view(2, 3, *shape)
    expected = images[..., 2:8] if shape == (6, 10) else images[..., 2:8, :]
    assert torch.equal(fit_square(images, 6), expected)
    square = images[..., :6, :6]
    assert torch.equal(fit_square(square, 6), square)


@pytest.mark.parametrize("shape", [(24, 48), (48, 24), (40, 40)])
def test_a_picture_is_what_its_file_would_be(tmp_path, shape):
    height, width = shape
    row, column = np.mgrid[0:height, 0:width]
    pixels = np.stack([4 * row, 4 * column, 2 * (row + column)], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "smooth.png")
    file = torch.tensor(read_image(tmp_path / "smooth.png", image_size=12)).float()
    scaled = fit_square(torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), 12)[0]
    # Pillow weighs pixels by another kernel and rounds; on a smooth picture that is a shade or two.
    assert (scaled.permute(1, 2, 0) - file)[2:-2, 2:-2].abs().max() < 2


def test_every_pixel_counts_in_a_picture_that_is_made_smaller():
    stripes = torch.zeros(1, 1, 32, 32)
    stripes[..., ::4] = 1
    scaled = fit_square(stripes, 8)
    # A line in four: their mean, and not what lies at the points that a smaller picture has.
    torch.testing.assert_close(scaled[..., 1:-1, 1:-1], torch.full((1, 1, 6, 6), 0.25))


def test_batches_of_pictures_that_are_not_square_are_cut(random_split):
    split = random_split(8, side=8)
    batches = DeviceBatches(split, batch_size=8, image_size=8)
    whole = next(iter(batches.epoch())).inputs
    wide = dataclasses.replace(
        split, x=np.pad(np.asarray(split.x), ((0, 0), (0, 0), (3, 3), (0, 0)))
    )
    cut = next(iter(DeviceBatches(wide, batch_size=8, image_size=8).epoch())).inputs
    assert torch.equal(cut, whole)
