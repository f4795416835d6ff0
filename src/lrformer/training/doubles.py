"""Samples that the data of a run hold more than once, where that spoils what is learned or what is measured."""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt64

from lrformer.data import Split
from lrformer.data.arrays import Rows
from lrformer.data.overlap import digests

# Samples are compared to the byte, where that takes seconds; a few doubles do no harm.
MOST_BYTES_COMPARED = 2**31
LEAST_DOUBLED = 0.01


def warn_of_doubles(train: Split, val: Split) -> list[str]:
    """Return a warning for each harm that samples do which the data hold more than once; large data are not compared."""
    if sum(math.prod(part.x.shape) * part.x.dtype.itemsize for part in (train, val)) > (
        MOST_BYTES_COMPARED
    ):
        return []
    marks = [digests(_each(part)) for part in (train, val)]
    found = (doubled_validation(*marks), two_labels((train, val), marks))
    return [warning for warning in found if warning is not None]


def doubled_validation(
    train: UInt64[np.ndarray, " n"], val: UInt64[np.ndarray, " m"]
) -> str | None:
    """Return a warning where validation samples are trained on, because the data hold them more than once, or None."""
    number = int(np.isin(val, train).sum())
    if number < LEAST_DOUBLED * len(val):
        return None
    return (
        f"warning: {number:,} of {len(val):,} validation samples are trained on too, because the data hold them more than "
        "once; temperature and threshold will be too confident. Remove the doubles from the data"
    )


def two_labels(splits: tuple[Split, ...], marks: list[np.ndarray]) -> str | None:
    """Return a warning where the same sample has two labels, in one split or in two, or None.

    Args:
        marks: the digests of the samples of each split.
    """
    keys = np.concatenate(marks)
    labels = np.concatenate([np.asarray(split.y) for split in splits])
    rows = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[rows], prepend=~keys[rows[:1]]))
    lowest, highest = (f.reduceat(labels[rows], starts) for f in (np.minimum, np.maximum))
    mixed = starts[lowest != highest]
    if not len(mixed):
        return None
    # Rows of one sample are in their order: its first comes first.
    one = int(rows[mixed].min())
    same = np.flatnonzero(keys == keys[one])
    other = int(same[labels[same] != labels[one]][0])
    names = [
        f"{_name(splits, row)} ('{splits[0].class_names[labels[row]]}')" for row in (one, other)
    ]
    what = "image" if splits[0].is_image else "point"
    more = len(mixed) - 1
    left = (
        f", and {more:,} more {what}{'s have' if more > 1 else ' has'} two labels" if more else ""
    )
    return (
        f"warning: {' and '.join(names)} are the same {what} with two labels{left}; nothing can be right about both. Remove "
        "the wrong ones from the data"
    )


def _each(split: Split) -> Iterator[np.ndarray]:
    """Return the samples of a split, one after the other."""
    return (split.x[row] for row in range(len(split)))


def _name(splits: tuple[Split, ...], row: int) -> str:
    """Return what to call a sample, by its row in all splits together: its file, else its row in the file of the array."""
    split, *others = splits
    if row >= len(split):
        return _name(tuple(others), row - len(split))
    if split.files is not None:
        return split.files[row]
    array, place = (
        (split.x.base, int(split.x.rows[row])) if isinstance(split.x, Rows) else (split.x, row)
    )
    where = getattr(array, "filename", None)
    return f"sample {row} of {split.name}" if where is None else f"{where} row {place}"
