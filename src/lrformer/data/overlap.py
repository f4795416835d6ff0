"""The same image in two splits: a model must not be judged on what it was trained on."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt64

from lrformer.core import ConfigError
from lrformer.data.file_split import first_names


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedImages:
    """The images of one split, and what to call each of them in a message."""

    split: str
    images: np.ndarray
    names: Iterable[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an image was found."""

    split: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.split})"


def digests(samples: Iterable[np.ndarray]) -> UInt64[np.ndarray, " n"]:
    """Return a number for each sample, equal where they are equal to the byte.

    Among ten million different ones two are equal by chance once in 370,000 times.
    """
    return np.fromiter((int.from_bytes(_digest(sample)[:8]) for sample in samples), dtype=np.uint64)


def check_no_overlap(splits: Iterable[NamedImages]) -> None:
    """Raise if splits hold the same images, to the byte; the message names all of them. Doubles in one split may stay."""
    first: dict[bytes, Place] = {}
    repeated: dict[bytes, list[Place]] = {}
    for part in splits:
        for image, name in zip(part.images, part.names, strict=True):
            digest, place = _digest(image), Place(split=part.split, name=name)
            known = first.setdefault(digest, place)
            if known is not place:
                repeated.setdefault(digest, [known]).append(place)
    pairs = [pair for places in repeated.values() for pair in _pairs(places)]
    if not pairs:
        return
    (copy, known), *others = pairs
    more = first_names([f"{one} and {other}" for one, other in others])
    raise ConfigError(
        f"{copy} is the same image as {known}; a model must not be judged on what it was trained on. Remove one of them."
        f"{f' So are these: {more}.' if more else ''}"
    )


def _pairs(places: list[Place]) -> list[tuple[Place, Place]]:
    """Return pairs of places in different splits that name each of them, where there is more than one split."""
    first = places[0]
    elsewhere = [place for place in places if place.split != first.split]
    beside = [place for place in places[1:] if place.split == first.split]
    return [(place, first) for place in elsewhere] + [
        (elsewhere[0], place) for place in beside if elsewhere
    ]


def _digest(sample: np.ndarray) -> bytes:
    return hashlib.blake2b(sample.tobytes(), digest_size=16).digest()
