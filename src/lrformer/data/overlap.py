"""The same image in two splits: a model must not be judged on what it was trained on."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lrformer.core import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedImages:
    """The images of one split, and what to call each of them in a message."""

    split: str
    images: np.ndarray
    names: Iterable[str]


def num_doubles(samples: Iterable[np.ndarray], among: Iterable[np.ndarray]) -> int:
    """Return how many of `samples` are also in `among`, to the byte."""
    known = {_digest(sample) for sample in among}
    return sum(_digest(sample) in known for sample in samples)


def check_no_overlap(splits: Iterable[NamedImages]) -> None:
    """Raise if two splits hold the same image, to the byte; the message names both. Doubles in one split may stay."""
    seen: dict[bytes, tuple[str, str]] = {}
    for part in splits:
        for image, name in zip(part.images, part.names, strict=True):
            digest = _digest(image)
            other_split, other_name = seen.setdefault(digest, (part.split, name))
            if other_split != part.split:
                raise ConfigError(
                    f"{name} ({part.split}) is the same image as {other_name} ({other_split}); a "
                    "model must not be judged on what it was trained on. Remove one of them."
                )


def _digest(sample: np.ndarray) -> bytes:
    return hashlib.blake2b(sample.tobytes(), digest_size=16).digest()
