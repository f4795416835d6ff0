"""Whose folder it is: new, the same run that goes on, or somebody else's."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lrformer.core import ConfigError, to_record
from lrformer.core.processes import gather_objects, num_processes
from lrformer.data import DATASETS
from lrformer.training.run_config import CONFIG_FILE, RunConfig, read_run_config, write_run_config

# Data may move; what they are is compared by class names, statistics and the digest of their files.
MOVABLE = frozenset({"train.root"})
PLACES = frozenset({"train.data", "train.start"})
# Others may follow from these: a size of patches from the data.
SAID_FIRST = ("train.data", "train.method", "train.start", "train.model")
FROM_DATA = frozenset({"class_names", "mean", "std", "data_digest", "scales_files"})
# Act after training alone, with every method, so that a finished run can have others without being trained again.
AFTER_TRAINING = ("score", "true_positive_rate")
# Not known of every run: points have none, nor has a run from before it was kept.
OPTIONAL = frozenset({"data_digest", "scales_files"})
CLASSES = "train.classes"
LOCK_FILE = ".training.lock"


def claim_folder(folder: Path, config: RunConfig) -> None:
    """Make `folder` the run of `config`, or go on in it if it already is; nothing of a training in it is changed.

    Raises:
        ConfigError: when the folder holds other things, or a run with other settings.
    """
    if (folder / CONFIG_FILE).is_file():
        there = read_run_config(folder)
        if not _is_unused(folder):
            check_same(folder, there, config)
        elif first_difference(there, config) is not None:
            with sole_process(folder):
                write_run_config(folder, config)
        return
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; a run is a folder. Choose another one.")
    if folder.is_dir() and any(map(_is_foreign, folder.iterdir())):
        raise ConfigError(
            f"{folder} is not empty and has no {CONFIG_FILE}, so it is no run of lrformer; choose "
            "another folder."
        )
    write_run_config(folder, config)


def check_is_shared(folder: Path) -> None:
    """Raise, in every process, where they do not all see the same folder; every process calls it."""
    if num_processes() == 1:
        return
    token = secrets.token_hex(4)
    # Named as what a crash may leave of the first write.
    mark = folder / f".{CONFIG_FILE}.{gather_objects(token)[0]}"
    is_first = mark.name.endswith(token)
    is_written = not is_first or _touch(mark)
    if not all(gather_objects(is_written)):
        return  # nothing can be written there: a finished run can still be read
    sees = gather_objects(mark.exists())
    if is_first:
        mark.unlink(missing_ok=True)
    if not all(sees):
        blind = ", ".join(str(number) for number, has in enumerate(sees) if not has)
        raise ConfigError(
            f"{folder} is not the same folder in every process (not in {blind}): they run on several machines. Choose one on "
            "a disk that all of them see."
        )


def _touch(path: Path) -> bool:
    """Return whether an empty file could be made."""
    try:
        path.touch()
    except OSError:
        return False
    return True


@contextmanager
def sole_process(folder: Path) -> Iterator[None]:
    """Keep other processes from training in `folder` inside the block.

    Raises:
        ConfigError: when another one does.
    """
    lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ConfigError(
            f"another process trains in {folder}; wait for it, or choose another folder."
        ) from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _is_foreign(path: Path) -> bool:
    """Return whether `path` is more than what a crash left of the very first write."""
    return not path.name.startswith(f".{CONFIG_FILE}.")


def _is_unused(folder: Path) -> bool:
    """Return whether a run was stopped, or diverged, before anything of its training was kept."""
    return all(
        path.name in (CONFIG_FILE, LOCK_FILE) or not _is_foreign(path) for path in folder.iterdir()
    )


def check_same(folder: Path, there: RunConfig, here: RunConfig) -> None:
    """Raise where `folder` is that of a run with other settings."""
    found = first_difference(there, here)
    if found is not None:
        name, before, now = found
        if name in FROM_DATA and have_moved(there, here):
            raise ConfigError(
                f"{folder} belongs to a run on other data: it was made of those that lay in {there.train.data}, and those "
                f"in {here.train.data} are not the same, for their {name} is {before!r} there and {now!r} here. Name the "
                "place of the same data to go on, or take another folder for a new run."
            )
        if name in FROM_DATA:
            raise ConfigError(
                f"{folder} belongs to a run on other data: {describe_change(*found)} Put them back to go on, or take "
                "another folder for a new run."
            )
        way_out = (
            f" (lrformer refit gives a finished run another {name} in a new folder, without training)"
            if name in AFTER_TRAINING
            else ""
        )
        raise ConfigError(
            f"{folder} belongs to a run with other settings: {name} is {before!r} there and {now!r} here. Give "
            f"the same settings to go on with it, or another folder for a new run{way_out}."
        )


def describe_change(name: str, before: Any, now: Any) -> str:
    """Return what is wrong where runs differ in nothing but what follows from their data."""
    return (
        f"their {name} is {before!r} there and {now!r} here, and every setting is the same, so that the data have "
        "changed."
    )


def first_difference(there: RunConfig, here: RunConfig) -> tuple[str, Any, Any] | None:
    """Return a setting in which two runs differ, with both values, or None."""
    before, now = _flat(to_record(there)), _flat(to_record(here))
    moved = {"train.data"} if have_moved(there, here) else set()
    # What the user wrote first, in the order of the fields, and what followed from it after.
    order = {name: place for place, name in enumerate(dict.fromkeys([*SAID_FIRST, *now, *before]))}
    names = sorted(
        {*before, *now} - MOVABLE - moved,
        key=lambda name: (not name.startswith("train."), name in OPTIONAL, order[name]),
    )
    for name in names:
        there_is, here_is = before.get(name), now.get(name)
        if name in OPTIONAL and None in (there_is, here_is):
            continue
        if name == CLASSES:
            # Numbers were kept as numbers once; what they stand for is compared by the names of the classes.
            there_is, here_is = (value and [str(c) for c in value] for value in (there_is, here_is))
        if there_is != here_is and not (name in PLACES and is_one_place(there_is, here_is)):
            return name.removeprefix("train."), there_is, here_is
    return None


def have_moved(there: RunConfig, here: RunConfig) -> bool:
    """Return whether the data of `there` are gone from their place, so that those of `here` are compared by content."""
    places = (there.train.data, here.train.data)
    digests = (there.data_digest, here.data_digest)
    if places[0] == places[1] or Path(places[0]).expanduser().is_dir() or None in digests:
        return False
    # The name of a data set is a setting, but what it stands for may lie in a folder too.
    return digests[0] == digests[1] or not any(place in DATASETS for place in places)


def is_one_place(one: Any, other: Any) -> bool:
    """Return whether two names lead to the same folder, as `photos` and `./photos/` do."""
    places = [Path(name).expanduser() for name in (one, other) if isinstance(name, str)]
    return (
        len(places) == 2
        and all(place.is_dir() for place in places)
        and places[0].samefile(places[1])
    )


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested objects under dotted names; an empty object has none."""
    if not isinstance(record, dict):
        return {prefix.removesuffix("."): record}
    leaves: dict[str, Any] = {}
    for key, value in record.items():
        leaves |= _flat(value, f"{prefix}{key}.")
    return leaves
