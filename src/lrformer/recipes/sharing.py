"""Processes that work on one table: a record has one writer at a time, and a run is in one hand.

The system lets go of the locks of a process that ends, however it ends; the empty lock files stay.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lrformer.training.atomic_files import RunFileError, explain

# Whoever only looks whether a run is in hand holds its lock for a moment.
SECONDS_OF_PATIENCE = 0.2
POLL_INTERVAL = SECONDS_OF_PATIENCE / 10


def lock_path(path: Path) -> Path:
    """Return the lock of a record or of a run: a hidden file beside it, wherever else a process works.

    That of a link lies beside what it leads to, so that it is the same under both names.
    """
    path = path.resolve() if path.is_symlink() else path
    return path.with_name(f".{path.name}.lock")


@contextmanager
def sole_writer(record: Path) -> Iterator[None]:
    """Wait until no other process writes to `record`, and keep the others waiting inside the block."""
    lock = _take(record)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def take_in_hand(run: Path) -> Iterator[bool]:
    """Give whether the run of this folder is ours inside the block; False where another process has it."""
    try:
        lock = _take(run, timeout=SECONDS_OF_PATIENCE)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def is_in_hand(run: Path) -> bool:
    """Return whether a process is known to have the run of this folder in hand; nothing is written."""
    path = lock_path(run)
    try:
        if path.exists():
            with FileLock(path, timeout=SECONDS_OF_PATIENCE, poll_interval=POLL_INTERVAL):
                return False
    except Timeout:
        return True
    except OSError:  # the lock of another user, say, which cannot be tried
        return False
    return False


def _take(path: Path, timeout: float = -1) -> FileLock:
    """Return the lock of `path`, taken; without a timeout it is waited for."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFileError(
            f"{path.parent} cannot be made ({explain(error, path.parent)}); choose another folder."
        ) from error
    lock = FileLock(lock_path(path), timeout=timeout, poll_interval=POLL_INTERVAL)
    try:
        lock.acquire()
    except Timeout:
        raise
    except OSError as error:
        raise RunFileError(
            f"{lock_path(path)} cannot be opened ({error.strerror or error}): it may be another user's, or "
            "its folder may not be written; choose another --out, and another --record if it lies there."
        ) from error
    return lock
