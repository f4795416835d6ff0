"""Prepared splits on disk: `<split>-x.npy`, `<split>-y.npy` and a small `<split>.json` that says what they are."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from filelock import FileLock

from lrformer.core import ConfigError, from_record, to_record
from lrformer.data.arrays import channel_statistics, check_images, check_labels

SCHEMA = 1
# Of an .npz; numpy would open it, whole or damaged.
ARCHIVE_START = b"PK"
# The source of arrays that a user has put there.
GIVEN_ARRAYS = "arrays"
# What to do about a file that is no array: of one that a user made, and of one that is made from other files.
SAVE_AS_ARRAY = "save it as .npy with numpy.save"
PREPARE_AGAIN = "remove it, and it is prepared again"
WHOLE_FILE_BYTES = 2**30
NUM_BLOCKS = 1024
BLOCK_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a prepared split is, kept beside its arrays and compared with them whenever they are opened."""

    schema: int
    num_samples: int
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checksum_x: str
    checksum_y: str
    source: str
    fingerprint: str | None = None

    @property
    def digest(self) -> str:
        """Return one name for images and labels together."""
        return hashlib.sha256(f"{self.checksum_x}\0{self.checksum_y}".encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A split as it lies in the cache: memory-mapped images, labels as int64, and the manifest."""

    x: np.ndarray
    y: np.ndarray
    manifest: Manifest


def images_path(folder: Path, split: str) -> Path:
    """Return where the images of `split` lie."""
    return folder / f"{split}-x.npy"


def labels_path(folder: Path, split: str) -> Path:
    """Return where the labels of `split` lie."""
    return folder / f"{split}-y.npy"


def manifest_path(folder: Path, split: str) -> Path:
    """Return where the manifest of `split` lies."""
    return folder / f"{split}.json"


def is_prepared(folder: Path, split: str) -> bool:
    """Return whether both arrays of `split` are there; the manifest can be made from them."""
    return images_path(folder, split).is_file() and labels_path(folder, split).is_file()


@contextmanager
def preparing(folder: Path) -> Iterator[None]:
    """Keep other processes from preparing into `folder` inside the block; they wait, and then find it done.

    Raises:
        ConfigError: when nothing can be written into `folder`.
    """
    lock = FileLock(folder / ".preparing.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise ConfigError(
            f"prepared images are kept in {folder}, which cannot be written to ({error.strerror or error}); name "
            "another place with root (--root FOLDER)."
        ) from error
    try:
        yield
    finally:
        lock.release()


def prepared_splits(folder: Path) -> list[str]:
    """Return the names of the splits whose arrays lie in `folder`."""
    names = sorted(path.name.removesuffix("-x.npy") for path in folder.glob("*-x.npy"))
    return [name for name in names if is_prepared(folder, name)]


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, prefixed with how it was taken.

    Above 1 GiB only 1,024 blocks at even distances and the size are hashed, so that a start takes seconds and not
    minutes; the prefix says so.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE_FILE_BYTES:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        digest = hashlib.sha256(str(size).encode())
        for position in np.linspace(0, size - BLOCK_BYTES, NUM_BLOCKS).astype(int):
            file.seek(int(position))
            digest.update(file.read(BLOCK_BYTES))
    return f"sha256-blocks:{digest.hexdigest()}"


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a file beside `path`, and rename it only when it is whole and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_arrays(folder: Path, split: str, x: np.ndarray, y: np.ndarray) -> None:
    """Write both arrays of a split; an older manifest and its labels go first, so that no mixture can remain."""
    manifest_path(folder, split).unlink(missing_ok=True)
    labels_path(folder, split).unlink(missing_ok=True)
    write_atomically(
        images_path(folder, split), lambda file: np.save(file, np.ascontiguousarray(x))
    )
    write_atomically(labels_path(folder, split), lambda file: np.save(file, y))


def write_manifest(
    folder: Path,
    split: str,
    *,
    class_names: tuple[str, ...],
    source: str,
    fingerprint: str | None = None,
) -> Manifest:
    """Return the manifest of the arrays that lie in `folder`, after writing it beside them if that is allowed."""
    x, y = load_array(images_path(folder, split)), load_array(labels_path(folder, split))
    check_images(x, where=str(images_path(folder, split)))
    check_labels(
        y, num_samples=len(x), num_classes=len(class_names), where=str(labels_path(folder, split))
    )
    mean, std = channel_statistics(x)
    manifest = Manifest(
        schema=SCHEMA,
        num_samples=len(x),
        shape=tuple(x.shape),
        class_names=class_names,
        class_counts=tuple(np.bincount(y, minlength=len(class_names)).tolist()),
        mean=mean,
        std=std,
        checksum_x=checksum(images_path(folder, split)),
        checksum_y=checksum(labels_path(folder, split)),
        source=source,
        fingerprint=fingerprint,
    )
    text = json.dumps(to_record(manifest), indent=1) + "\n"
    try:
        write_atomically(manifest_path(folder, split), lambda file: _write_text(file, text))
    except OSError:
        # A folder of arrays may be read-only; it is then checked for what it holds, at every start.
        if not os.access(folder, os.W_OK):
            return manifest
        raise
    return manifest


def read_manifest(folder: Path, split: str) -> Manifest | None:
    """Return the manifest of a split, or None where there is none."""
    path = manifest_path(folder, split)
    if not path.is_file():
        return None
    try:
        return from_record(Manifest, json.loads(path.read_text()))
    except (ValueError, ConfigError) as error:
        raise ConfigError(
            f"{path} is not a manifest ({error}); remove it, and it is made again from the arrays."
        ) from error


def open_prepared(
    folder: Path, split: str, *, class_names: tuple[str, ...] | None = None
) -> Prepared:
    """Return a prepared split after comparing count and checksum with its manifest.

    Where only the arrays are there the manifest is made, with `class_names` or, without them, one name a label.
    """
    x_path, y_path = images_path(folder, split), labels_path(folder, split)
    manifest = read_manifest(folder, split)
    is_ours = manifest is not None and manifest.source != GIVEN_ARRAYS
    way_out = PREPARE_AGAIN if is_ours else SAVE_AS_ARRAY
    x, y = (load_array(path, way_out=way_out) for path in (x_path, y_path))
    if manifest is None:
        if class_names is None:
            check_labels(y, num_samples=len(x), num_classes=None, where=str(y_path))
            if len(y) == 0:
                raise ConfigError(f"{x_path} is empty; it must hold at least one image.")
            class_names = tuple(str(label) for label in range(int(y.max()) + 1))
        manifest = write_manifest(folder, split, class_names=class_names, source=GIVEN_ARRAYS)
    if (manifest.shape, manifest.num_samples) != (tuple(x.shape), len(y)):
        raise ConfigError(
            f"{x_path} has shape {x.shape} and {y_path.name} {len(y)} labels, but "
            f"{split}.json says {manifest.shape} and {manifest.num_samples}; prepare the set again."
        )
    for path, expected in ((x_path, manifest.checksum_x), (y_path, manifest.checksum_y)):
        if checksum(path) != expected:
            raise ConfigError(
                f"{path} does not have the checksum that {split}.json says; it was damaged or "
                f"replaced. Remove {split}.json if the new content is meant."
            )
    check_images(x, where=str(x_path))
    check_labels(y, num_samples=len(x), num_classes=len(manifest.class_names), where=str(y_path))
    return Prepared(x=x, y=y.astype(np.int64), manifest=manifest)


def load_array(
    path: Path, *, mmap_mode: Literal["r"] | None = "r", way_out: str = SAVE_AS_ARRAY
) -> np.ndarray:
    """Return the array in `path`, memory-mapped and never unpickled."""
    try:
        with path.open("rb") as file:
            is_archive = file.read(len(ARCHIVE_START)) == ARCHIVE_START
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as an array: {error}.") from error
    if is_archive:
        raise ConfigError(
            f"{path} is an archive, which holds several arrays; save one as .npy with numpy.save."
        )
    try:
        return np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        # numpy takes whatever it does not know for a pickle, and says how to open one.
        raise ConfigError(f"{path} cannot be read as an array of numbers; {way_out}.") from error


def _write_text(file: BinaryIO, text: str) -> None:
    file.write(text.encode())
