"""Many image files into one array: decoded in threads, resumed where it stopped, checked as it goes."""

import errno
import hashlib
import json
import os
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8

from lrformer.core import ConfigError
from lrformer.data.cache import (
    images_path,
    labels_path,
    manifest_path,
    write_atomically,
)
from lrformer.data.image_file import (
    OtherChannelsError,
    UnreadableImageError,
    check_channels,
    read_image,
)
from lrformer.data.preparation_lines import PreparationLines

ROWS_AT_A_TIME = 512
# An error names this many files besides the first, for each thing that is wrong.
NUM_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class FileSplit:
    """The files of one split with their labels, before any is read."""

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """How files become equal arrays: `image_size` (center square) and `channels` (1 or 3); None keeps the file's."""

    image_size: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise ConfigError(f"image_size ({self.image_size}) must be at least 1.")
        check_channels(self.channels)


def files_path(folder: Path, split: str) -> Path:
    """Return where the names of the files of `split` lie, one a line in the order of the rows."""
    return folder / f"{split}-files.txt"


def in_one_line(path: Path | str) -> str:
    """Return the name of a file for a reader: what has no sign, such as bytes that are no UTF-8 or line breaks, as escapes."""
    return "".join(
        sign
        if sign.isprintable() or unicodedata.category(sign) == "Zs"
        else sign.encode("unicode_escape").decode()
        for sign in str(path)
    )


def read_file_names(folder: Path, split: str) -> tuple[str, ...] | None:
    """Return the names of the files that the rows came from, or None where they were no files."""
    path = files_path(folder, split)
    if not path.is_file():
        return None
    try:
        return tuple(path.read_bytes().decode().split("\n")[:-1])
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is damaged ({error}); remove {folder}, and it is prepared again."
        ) from error


def fingerprint(split: FileSplit, image_format: ImageFormat) -> str:
    """Return a digest of names, sizes, times and labels: it changes when the folder does."""
    digest = hashlib.sha256(f"{image_format}{split.class_names}".encode(errors="surrogateescape"))
    for path, label in zip(split.files, split.labels, strict=True):
        stat = path.stat()
        mark = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{label}\n"
        digest.update(mark.encode(errors="surrogateescape"))
    return digest.hexdigest()


def write_files(folder: Path, name: str, split: FileSplit, image_format: ImageFormat) -> None:
    """Write the arrays of a split from its files; after an interruption the rows already decoded are kept.

    The manifest is left to the caller, who may have more to check first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest_path(folder, name).unlink(missing_ok=True)
    labels_path(folder, name).unlink(missing_ok=True)
    first_path, first = _first_readable(split.files, image_format)
    shape = (len(split.files), *first.shape)
    partial = images_path(folder, name).with_suffix(".npy.partial")
    progress = folder / f".{name}.progress.json"
    state = {"fingerprint": fingerprint(split, image_format), "shape": list(shape)}
    done = _rows_done(partial, progress, state)
    array = np.lib.format.open_memmap(
        partial, mode="r+" if done else "w+", dtype=np.uint8, shape=shape
    )
    _reserve(partial)

    def read(path: Path) -> np.ndarray | ConfigError:
        try:
            return _read_like(first, first_path, path, image_format)
        except ConfigError as error:
            return error

    wrong: list[ConfigError] = []
    lines = PreparationLines(split.source, len(split.files))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(done, len(split.files), ROWS_AT_A_TIME):
            block = split.files[start : start + ROWS_AT_A_TIME]
            for row, image in enumerate(pool.map(read, block), start):
                if isinstance(image, ConfigError):
                    wrong.append(image)
                else:
                    array[row] = image
                lines.update(row + 1)
            if wrong:
                continue  # the rest is only looked at, so that one error names all files
            array.flush()
            text = json.dumps({**state, "rows": start + len(block)})
            write_atomically(progress, lambda file, text=text: _write(file, text))
    if wrong:
        raise ConfigError(_describe(wrong)) from wrong[0]
    partial.replace(images_path(folder, name))
    labels = np.asarray(split.labels, dtype=np.int64)
    write_atomically(labels_path(folder, name), lambda file: np.save(file, labels))
    names = "".join(f"{in_one_line(path)}\n" for path in split.files)
    write_atomically(files_path(folder, name), lambda file: _write(file, names))
    progress.unlink(missing_ok=True)


def _first_readable(
    files: tuple[Path, ...], image_format: ImageFormat
) -> tuple[Path, UInt8[np.ndarray, "height width channel"]]:
    """Return the first file that can be taken, with its image: the others have to be like it.

    Raises:
        ConfigError: where none of the first block can be.
    """
    wrong: list[ConfigError] = []
    for path in files[:ROWS_AT_A_TIME]:
        try:
            return path, read_image(
                path, image_size=image_format.image_size, channels=image_format.channels
            )
        except ConfigError as error:
            wrong.append(error)
    raise ConfigError(_describe(wrong)) from wrong[0]


def _describe(wrong: list[ConfigError]) -> str:
    """Return what is wrong: for every reason the first file in full, and the names of the others."""
    by_reason: dict[type, list[str]] = {}
    for error in wrong:
        by_reason.setdefault(type(error), []).append(str(error))
    # What an option helps with comes last, where it is read.
    order = (UnreadableImageError, ConfigError, OtherChannelsError)
    return " ".join(_describe_reason(by_reason[kind]) for kind in order if kind in by_reason)


def _describe_reason(texts: list[str]) -> str:
    said, *others = texts
    if not others:
        return said
    names = [text.split(": ", 1)[0] for text in others]
    return f"{said} These cannot be taken either: {first_names(names)}."


def first_names(names: Sequence[str]) -> str:
    """Return as many names as an error has room for, and the number of the others."""
    left = f" and {len(names) - NUM_NAMED:,} more" if len(names) > NUM_NAMED else ""
    return f"{', '.join(names[:NUM_NAMED])}{left}"


def _reserve(path: Path) -> None:
    """Raise now if the disk is too small for a file that is mapped: a write to the map could not say so."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return  # a file system that cannot reserve
        size = path.stat().st_size
        path.unlink()
        raise ConfigError(
            f"{path.parent} has no room for {size / 1e9:.2f} GB of prepared images ({error.strerror}); make room, or name "
            "another place with root (--root)."
        ) from error


def _rows_done(partial: Path, progress: Path, state: dict[str, object]) -> int:
    """Return how many rows of an interrupted run can be kept: none if the files have changed since."""
    if not (partial.is_file() and progress.is_file()):
        return 0
    try:
        before = json.loads(progress.read_text())
    except json.JSONDecodeError:
        return 0
    rows = before.pop("rows", 0)
    return rows if before == state else 0


def _read_like(
    first: np.ndarray, first_path: Path, path: Path, image_format: ImageFormat
) -> np.ndarray:
    """Return an image that has the shape of the first, or raise with both names."""
    image = read_image(path, image_size=image_format.image_size, channels=image_format.channels)
    if image.shape[2] != first.shape[2]:
        raise OtherChannelsError(
            f"{path}: the image has {image.shape[2]} channels but {first_path} has "
            f"{first.shape[2]}; pass channels=3 (--channels 3) to convert them all to RGB, or 1 to gray."
        )
    if image.shape != first.shape:
        raise ConfigError(
            f"{path}: the image is {image.shape[1]}x{image.shape[0]} pixels but {first_path} is "
            f"{first.shape[1]}x{first.shape[0]}; pass image_size (--image-size) to scale them all."
        )
    return image


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode())
