"""Processes that work on one table: a record has one writer at a time, and a run is in one hand.

The system lets go of the locks of a process that ends, however it ends; the empty lock files stay.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lrformer.training.atomic_files import RunFileError

# Whoever only looks whether a run is in hand holds its lock for a moment.
SECONDS_OF_PATIENCE = 0.2


def lock_path(path: Path) -> Path:
    """Return the lock of a record or of a run: a hidden file beside it, wherever else a process works."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def sole_writer(record: Path) -> Iterator[None]:
    """Wait until no other process writes to `record`, and keep the others waiting inside the block."""
    with _make_lock(record):
        yield


@contextmanager
def take_in_hand(run: Path) -> Iterator[bool]:
    """Give whether the run of this folder is ours inside the block; False where another process has it."""
    lock = _make_lock(run)
    try:
        lock.acquire(timeout=SECONDS_OF_PATIENCE, poll_interval=SECONDS_OF_PATIENCE / 10)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def is_in_hand(run: Path) -> bool:
    """Return whether a process has the run of this folder in hand; nothing is written."""
    path = lock_path(run)
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def _make_lock(path: Path) -> FileLock:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFileError(
            f"{path.parent} cannot be made ({error.strerror or error}); choose another folder."
        ) from error
    return FileLock(lock_path(path))
