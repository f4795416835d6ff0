"""Gray and RGB: one from the other."""

import dataclasses

import numpy as np

from lrformer.data.arrays import Split

# Rec. 601 luma, as image libraries convert to gray.
GRAY_WEIGHTS = (0.299, 0.587, 0.114)


def match_channels(split: Split, channels: int) -> Split:
    """Return the split with as many channels as a model reads: gray is repeated, RGB is weighted to gray."""
    if not split.is_image or split.x.shape[3] == channels:
        return split
    pixels = np.asarray(split.x)
    if channels == 1:
        gray = np.rint(pixels @ np.asarray(GRAY_WEIGHTS)).astype(np.uint8)
        return dataclasses.replace(split, x=gray[..., None], mean=split.mean[:1], std=split.std[:1])
    return dataclasses.replace(
        split, x=np.repeat(pixels, 3, axis=3), mean=split.mean * 3, std=split.std * 3
    )
