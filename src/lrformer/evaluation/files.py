"""Predictions for image files: read ahead in threads, predicted in batches, given out in order, one row a file."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from lrformer.core import ConfigError, LRFormerError, make_generator
from lrformer.data import read_image
from lrformer.data.folder_layout import images_below
from lrformer.heads import Predictive
from lrformer.training import Run, load_run

DEFAULT_FILES_AT_A_TIME = 64
MOST_READERS = 8
GLOB_CHARACTERS = "*?["


class NoImageError(ConfigError):
    """A name that stands for no image at all: an empty folder, a pattern that matches nothing, a file that is not there."""


@dataclass(frozen=True, kw_only=True)
class FilePrediction:
    """What a run says about one file; everything but `file` and `error` is None where it could not be read.

    Attributes:
        is_image: False where the name stands for no image: an empty folder, a pattern without a match, a file that is
            not there.
        label: the most probable class, by name.
        uncertainty: by the score that the run keeps its threshold for.
        is_in_distribution: whether the uncertainty is at most that threshold.
        top: the most probable classes with their probabilities, the most probable first, where more than one was asked
            for.
        scores: every score that the prediction can give, by name, where they were asked for.
    """

    file: str
    label: str | None = None
    probability: float | None = None
    uncertainty: float | None = None
    is_in_distribution: bool | None = None
    error: str | None = None
    is_image: bool = True
    top: tuple[tuple[str, float], ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)


def find_files(places: Sequence[str]) -> list[Path]:
    """Return the files that the names stand for: folders are searched, globs expanded, the rest taken as it is.

    A name that stands for nothing stays in the list, so that it becomes a row with its error and is not lost.
    """
    if isinstance(places, str):
        raise ConfigError(f"places ('{places}') must be a list of names; give ['{places}'].")
    files: list[Path] = []
    for place in places:
        path = Path(place).expanduser()
        if path.is_dir():
            files += images_below(path) or [path]
        elif not path.exists() and any(character in place for character in GLOB_CHARACTERS):
            start = Path(path.anchor)
            found = sorted(start.glob(str(path.relative_to(start))))
            files += find_files([str(match) for match in found]) or [path]
        else:
            files.append(path)
    return files


def predict_files(
    run: Run | str | os.PathLike[str],
    files: Iterable[str | Path],
    *,
    batch_size: int = DEFAULT_FILES_AT_A_TIME,
    seed: int = 0,
    top: int = 1,
    has_all_scores: bool = False,
) -> Iterator[FilePrediction]:
    """Return an iterator of one prediction for each file, in their order, in memory for two batches only.

    A file that cannot be read gives a row with its error; the others are not affected.

    Args:
        run: or its folder.
        seed: of the draws of a sampling method.
        top: how many of the most probable classes are given.
        has_all_scores: whether every score is given, and not only that of the threshold.
    """
    if isinstance(files, str | os.PathLike):
        raise ConfigError(f"files ('{files}') must be a list of files; give ['{files}'].")
    if not isinstance(run, Run):
        run = load_run(run)
    if run.config.img_size is None:
        raise ConfigError(f"{run.path} was trained on points, not on images; it cannot read files.")
    if batch_size < 1:
        raise ConfigError(f"batch_size ({batch_size}) must be at least 1.")
    if not 1 <= top <= len(run.class_names):
        raise ConfigError(
            f"top ({top}) must be from 1 to {len(run.class_names)}, the number of classes of {run.path}."
        )
    wanted = _Wanted(top=top, has_all_scores=has_all_scores)
    return _predict_files(run, map(Path, files), batch_size, seed, wanted)


def given_scores(run: Run) -> tuple[str, ...]:
    """Return the names of the scores that a run gives for images, from its prediction for a black one."""
    if run.config.img_size is None:
        raise ConfigError(f"{run.path} was trained on points, not on images; it cannot read files.")
    shape = (1, run.config.img_size, run.config.img_size, run.config.channels)
    black = torch.zeros(shape, dtype=torch.uint8)
    return run.predict(black, generator=make_generator(0, run.device)).scores


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What is said of a file beside its class and the score of the threshold."""

    top: int
    has_all_scores: bool


def _predict_files(
    run: Run, files: Iterator[Path], batch_size: int, seed: int, wanted: _Wanted
) -> Iterator[FilePrediction]:
    readers = min(MOST_READERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(readers) as pool:

        def submit() -> list[tuple[Path, Future[np.ndarray]]]:
            return [(path, pool.submit(_read, run, path)) for path in islice(files, batch_size)]

        waiting = submit()
        while waiting:
            # The next batch is read while this one is predicted.
            present, waiting = waiting, submit()
            # The same draws for every batch: what is said of a file depends on no other batch.
            yield from _predict_batch(run, present, make_generator(seed, run.device), wanted)


def _read(run: Run, path: Path) -> np.ndarray:
    if path.is_dir():
        raise NoImageError(f"{path}: the folder has no image in it.")
    if not path.exists():
        is_pattern = any(character in str(path) for character in GLOB_CHARACTERS)
        reason = "no file matches this pattern." if is_pattern else "there is no such file."
        raise NoImageError(f"{path}: {reason}")
    config = run.config
    # Otherwise on the device, as in training.
    size = config.img_size if config.is_scaled_as_files else None
    return read_image(path, image_size=size, channels=config.channels)


def _predict_batch(
    run: Run,
    batch: list[tuple[Path, Future[np.ndarray]]],
    generator: torch.Generator,
    wanted: _Wanted,
) -> list[FilePrediction]:
    images, rows = [], []
    found: dict[int, FilePrediction] = {}
    for row, (path, reading) in enumerate(batch):
        try:
            images.append(reading.result())
            rows.append(row)
        except (LRFormerError, OSError) as error:
            reason = str(error).removeprefix(f"{path}: ")
            is_image = not isinstance(error, NoImageError)
            found[row] = FilePrediction(file=str(path), error=reason, is_image=is_image)
    if images:
        inputs = torch.cat([run.preprocess(image[None]) for image in images])
        predictive = run.temperature(run.method.predict(inputs, generator))
        probability, label = predictive.probs.max(dim=-1)
        uncertainty = predictive.uncertainty(run.decision.score)
        is_known = run.is_in_distribution(predictive)
        top = _top(run, predictive, wanted.top) if wanted.top > 1 else [()] * len(rows)
        names = predictive.scores if wanted.has_all_scores else ()
        scores = {name: predictive.uncertainty(name).tolist() for name in names}
        for position, row in enumerate(rows):
            found[row] = FilePrediction(
                file=str(batch[row][0]),
                label=run.class_names[int(label[position])],
                probability=float(probability[position]),
                uncertainty=float(uncertainty[position]),
                is_in_distribution=bool(is_known[position]),
                top=top[position],
                scores={name: values[position] for name, values in scores.items()},
            )
    return [found[row] for row in range(len(batch))]


def _top(run: Run, predictive: Predictive, number: int) -> list[tuple[tuple[str, float], ...]]:
    """Return the most probable classes of each image with their probabilities; of equal ones the first comes first."""
    ordered = predictive.probs.sort(dim=-1, descending=True, stable=True)
    return [
        tuple(
            (run.class_names[label], probability) for label, probability in zip(*row, strict=True)
        )
        for row in zip(
            ordered.indices[:, :number].tolist(), ordered.values[:, :number].tolist(), strict=True
        )
    ]
