"""The images that a person should see: the most uncertain, the most confidently wrong, the most trusted strangers."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from lrformer.core import ConfigError, from_record, to_record
from lrformer.data import Split
from lrformer.evaluation.predictions import Predictions
from lrformer.training.atomic_files import replace_file

DEFAULT_NUM_IMAGES = 12
LARGEST_SIDE = 160
MOST_UNCERTAIN = "most uncertain"
CONFIDENTLY_WRONG = "most confidently wrong"
CONFIDENT_STRANGER = "most confident on unknown data"


@dataclass(frozen=True, kw_only=True)
class GalleryEntry:
    """What is said under one image; `truth` is None on a set without right answers."""

    dataset: str
    reason: str
    row: int
    predicted: str
    truth: str | None
    probability: float
    uncertainty: float
    file: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """Images with what is said under them, in the order in which they are shown."""

    entries: tuple[GalleryEntry, ...] = ()
    images: tuple[UInt8[np.ndarray, "height width channel"], ...] = ()

    def __add__(self, other: "Gallery") -> "Gallery":
        return Gallery(entries=self.entries + other.entries, images=self.images + other.images)

    def save(self, path: str | Path) -> None:
        """Write images and words to one npz file without pickles."""
        arrays: dict[str, Any] = {f"{i:05d}": image for i, image in enumerate(self.images)}
        arrays["entries"] = np.array(json.dumps([to_record(entry) for entry in self.entries]))
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        replace_file(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Gallery":
        """Return what `save` wrote; nothing is unpickled."""
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                arrays = dict(file)
            records = json.loads(str(arrays.pop("entries")))
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise ConfigError(f"{path} cannot be read as a gallery ({error}).") from error
        return cls(
            entries=tuple(from_record(GalleryEntry, record) for record in records),
            images=tuple(arrays[key] for key in sorted(arrays)),
        )


def pick_images(
    predictions: Predictions, split: Split, *, num_images: int = DEFAULT_NUM_IMAGES
) -> Gallery:
    """Return the images of `split` worth a look; none where it holds points.

    With labels: the most uncertain ones, and the wrong ones that the model was surest of. Without: those of an unknown
    set that the model was surest of.
    """
    if not split.is_image:
        return Gallery()
    if len(split) != len(predictions):
        raise ConfigError(
            f"{split.name} has {len(split)} images but there are {len(predictions)} predictions."
        )
    if predictions.labels is None:
        rows = np.argsort(-predictions.confidence, kind="stable")
        return _gallery(predictions, split, rows[:num_images], reason=CONFIDENT_STRANGER)
    uncertain = np.argsort(-predictions.uncertainty(), kind="stable")[:num_images]
    wrong = np.flatnonzero(predictions.predicted != predictions.labels)
    surest = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:num_images]
    return _gallery(predictions, split, uncertain, reason=MOST_UNCERTAIN) + _gallery(
        predictions, split, surest, reason=CONFIDENTLY_WRONG
    )


def _gallery(
    predictions: Predictions, split: Split, rows: Int[np.ndarray, " k"], *, reason: str
) -> Gallery:
    labels = predictions.labels
    entries = tuple(
        GalleryEntry(
            dataset=predictions.name,
            reason=reason,
            row=int(row),
            predicted=predictions.class_name(int(predictions.predicted[row])),
            truth=None if labels is None else predictions.class_name(int(labels[row])),
            probability=float(predictions.confidence[row]),
            uncertainty=float(predictions.uncertainty()[row]),
            file=None if split.files is None else "/".join(Path(split.files[int(row)]).parts[-2:]),
        )
        for row in rows
    )
    return Gallery(entries=entries, images=tuple(_thumbnail(split.x[int(row)]) for row in rows))


def _thumbnail(image: np.ndarray) -> UInt8[np.ndarray, "height width channel"]:
    """Return the image, scaled down where it is larger than a report needs."""
    from PIL import Image

    height, width, channels = image.shape
    if max(height, width) <= LARGEST_SIDE:
        return np.array(image)
    factor = LARGEST_SIDE / max(height, width)
    size = (max(round(width * factor), 1), max(round(height * factor), 1))
    pixels = Image.fromarray(np.array(image[:, :, 0] if channels == 1 else image)).resize(size)
    return np.asarray(pixels).reshape(size[1], size[0], channels)
