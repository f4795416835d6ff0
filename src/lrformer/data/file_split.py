"""Many image files into one array: decoded in threads, resumed where it stopped, checked as it goes."""

import dataclasses
import errno
import hashlib
import io
import json
import os
import unicodedata
from collections.abc import Iterable, Sequence
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
    UnreachedImageError,
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


def left_out_path(folder: Path, split: str) -> Path:
    """Return where the names of the files lie that could not be read and were left out; without any there is none."""
    return folder / f"{split}-left-out.txt"


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
    return _read_names(path) if path.is_file() else None


def read_left_out(folder: Path, split: str) -> tuple[str, ...]:
    """Return the names of the files that could not be read and were left out."""
    path = left_out_path(folder, split)
    return _read_names(path) if path.is_file() else ()


def _read_names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_bytes().decode().split("\n")[:-1])
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is damaged ({error}); remove {path.parent}, and it is prepared again."
        ) from error


def fingerprint(split: FileSplit, image_format: ImageFormat) -> str:
    """Return a digest of names, sizes, times and labels: it changes when the folder does."""
    digest = hashlib.sha256(f"{image_format}{split.class_names}".encode(errors="surrogateescape"))
    for path, label in zip(split.files, split.labels, strict=True):
        stat = path.stat()
        mark = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{label}\n"
        digest.update(mark.encode(errors="surrogateescape"))
    return digest.hexdigest()


def fingerprint_of_readable(mark: str) -> str:
    """Return the fingerprint of the same files, `mark`, where those that could not be read were left out."""
    return hashlib.sha256(f"{mark}\0readable".encode()).hexdigest()


def write_files(
    folder: Path,
    name: str,
    split: FileSplit,
    image_format: ImageFormat,
    *,
    skip_unreadable: bool = False,
    way_out: str = "",
) -> None:
    """Write the arrays of a split from its files; after an interruption the rows already decoded are kept.

    The manifest is left to the caller, who may have more to check first. Arrays from before stay until the new ones
    are whole.

    Args:
        skip_unreadable: leave out files that cannot be decoded, in place of raising; `read_left_out` names them.
        way_out: what else helps against such files, a sentence.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first_path, first = _first_readable(
        split, image_format, skip_unreadable=skip_unreadable, way_out=way_out
    )
    shape = (len(split.files), *first.shape)
    partial = images_path(folder, name).with_suffix(".npy.partial")
    progress = folder / f".{name}.progress.json"
    state = {"fingerprint": fingerprint(split, image_format), "shape": list(shape)}
    done, left_out = _files_done(partial, progress, state, skip_unreadable=skip_unreadable)
    if not done:
        progress.unlink(missing_ok=True)  # what it speaks of is written over
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
            for place, image in enumerate(pool.map(read, block), start):
                if skip_unreadable and isinstance(image, UnreadableImageError):
                    left_out.append(place)
                elif isinstance(image, ConfigError):
                    wrong.append(image)
                else:
                    array[place - len(left_out)] = image
                lines.update(place + 1)
            if wrong:
                continue  # the rest is only looked at, so that one error names all files
            array.flush()
            text = json.dumps({**state, "rows": start + len(block), "left_out": left_out})
            write_atomically(progress, lambda file, text=text: _write(file, text))
    if wrong:
        raise ConfigError(_describe(wrong, way_out)) from wrong[0]
    kept = _without(split, left_out)
    if left_out:
        array.flush()
        del array
        _shorten(partial, len(kept.files))
    # No mixture with what was there before may remain: the manifest, which is written last, is gone first.
    for path in (manifest_path, labels_path, left_out_path):
        path(folder, name).unlink(missing_ok=True)
    partial.replace(images_path(folder, name))
    labels = np.asarray(kept.labels, dtype=np.int64)
    write_atomically(labels_path(folder, name), lambda file: np.save(file, labels))
    _write_names(files_path(folder, name), kept.files)
    if left_out:
        _write_names(left_out_path(folder, name), [split.files[place] for place in left_out])
    progress.unlink(missing_ok=True)


def _first_readable(
    split: FileSplit, image_format: ImageFormat, *, skip_unreadable: bool, way_out: str
) -> tuple[Path, UInt8[np.ndarray, "height width channel"]]:
    """Return the first file that can be taken, with its image: the others have to be like it.

    Raises:
        ConfigError: where none can be, or none of as many as a block has.
    """
    wrong: list[ConfigError] = []
    unreadable: list[ConfigError] = []
    for path in split.files:
        try:
            return path, read_image(
                path, image_size=image_format.image_size, channels=image_format.channels
            )
        except ConfigError as error:
            is_left_out = skip_unreadable and isinstance(error, UnreadableImageError)
            (unreadable if is_left_out else wrong).append(error)
        if len(wrong) == ROWS_AT_A_TIME:
            break
    if not wrong:
        raise ConfigError(
            f"{split.source}: no image in it can be read. {_describe(unreadable)}"
        ) from unreadable[0]
    raise ConfigError(_describe(wrong, way_out)) from wrong[0]


def _without(split: FileSplit, left_out: Sequence[int]) -> FileSplit:
    """Return a split without the files at some places, or raise where a class has lost its last one."""
    gone = frozenset(left_out)
    places = [place for place in range(len(split.files)) if place not in gone]
    labels = tuple(split.labels[place] for place in places)
    lost = sorted(set(split.labels) - set(labels))
    if lost:
        name, first = split.class_names[lost[0]], split.files[split.labels.index(lost[0])]
        raise ConfigError(
            f"{split.source}: class '{name}' has no image that can be read ({in_one_line(first)} is the first that "
            "cannot); add some or remove the class."
        )
    files = tuple(split.files[place] for place in places)
    return dataclasses.replace(split, files=files, labels=labels)


def _shorten(path: Path, num_rows: int) -> None:
    """Leave the first rows of an array that lies in a file, without another copy on the disk."""
    array = np.load(path, mmap_mode="r")
    shape, start, row_bytes = array.shape, array.offset, array[:1].nbytes
    header = io.BytesIO()
    values = {"descr": "|u1", "fortran_order": False, "shape": (num_rows, *shape[1:])}
    np.lib.format.write_array_header_1_0(header, values)
    # numpy leaves room in it for any number of rows.
    assert len(header.getvalue()) == start
    with path.open("r+b") as file:
        file.write(header.getvalue())
        file.truncate(start + num_rows * row_bytes)


def _write_names(path: Path, files: Iterable[Path]) -> None:
    names = "".join(f"{in_one_line(file)}\n" for file in files)
    write_atomically(path, lambda file: _write(file, names))


def _describe(wrong: list[ConfigError], way_out: str = "") -> str:
    """Return what is wrong: for every reason the first file in full, and the names of the others.

    Args:
        way_out: what else helps where images cannot be read.
    """
    by_reason: dict[type, list[str]] = {}
    for error in wrong:
        by_reason.setdefault(type(error), []).append(str(error))
    # What an option helps with comes last, where it is read.
    order = (UnreachedImageError, UnreadableImageError, ConfigError, OtherChannelsError)
    said = {kind: _describe_reason(by_reason[kind]) for kind in order if kind in by_reason}
    if way_out and UnreadableImageError in said:
        said[UnreadableImageError] += f" {way_out}"
    return " ".join(said.values())


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


def _files_done(
    partial: Path, progress: Path, state: dict[str, object], *, skip_unreadable: bool
) -> tuple[int, list[int]]:
    """Return how many files an interrupted run was done with, and the places of those that it left out.

    None count if the files have changed since, or if some were left out and all are wanted.
    """
    if not (partial.is_file() and progress.is_file()):
        return 0, []
    try:
        before = json.loads(progress.read_text())
    except json.JSONDecodeError:
        return 0, []
    rows, left_out = before.pop("rows", 0), before.pop("left_out", [])
    is_same = before == state and (skip_unreadable or not left_out)
    return (rows, left_out) if is_same else (0, [])


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
