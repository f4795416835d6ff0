"""Scikit-learn's 1,797 handwritten digits, 8x8 gray: real images that need no network."""

from pathlib import Path

import numpy as np

from lrformer.data.source import RawSplit, Source
from lrformer.data.splits import stratified_rows

TEST_FRACTION = 0.2
# One test split for everybody, whatever the seed of a run.
TEST_SEED = 0
LARGEST_LEVEL = 16


def _read(split: str, root: Path, download: bool) -> RawSplit:  # noqa: ARG001 - the package holds it
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = np.round(images * (255 / LARGEST_LEVEL)).astype(np.uint8).reshape(-1, 8, 8, 1)
    y = labels.astype(np.int64)
    train, test = stratified_rows(y, fraction=TEST_FRACTION, seed=TEST_SEED)
    rows = train if split == "train" else test
    return RawSplit(x=x[rows], y=y[rows], source="scikit-learn load_digits")


DIGITS = Source(
    summary="1,797 handwritten digits, 8x8 gray, embedded in scikit-learn",
    class_names=tuple("0123456789"),
    splits=("train", "test"),
    read=_read,
    is_cached=False,
)
