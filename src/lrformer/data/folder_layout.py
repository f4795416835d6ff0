"""The layout of a folder of images: `train/ val/ [test/] [ood-*/]`, one directory a class."""

import os
from pathlib import Path

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.data.file_split import FileSplit, in_one_line
from lrformer.data.image_file import is_image_file

LABELED_SPLITS = ("train", "val", "test")
OOD_PREFIX = "ood-"


def has_split_layout(folder: Path) -> bool:
    """Return whether `folder` has a `train` directory; without one, the folder itself is one split."""
    return (folder / "train").is_dir()


def labeled_splits(folder: Path) -> list[str]:
    """Return which of train, val and test are there."""
    return [split for split in LABELED_SPLITS if (folder / split).is_dir()]


def ood_splits(folder: Path) -> list[str]:
    """Return the names of the `ood-*` directories."""
    return sorted(path.name for path in folder.glob(f"{OOD_PREFIX}*") if path.is_dir())


def scan_labeled(folder: Path, split: str) -> FileSplit:
    """Return the files of train, val or test, labeled by the sorted class directories of `train`."""
    class_names = tuple(in_one_line(path.name) for path in _class_directories(folder / "train"))
    if len(class_names) < 2:
        found = f"one class ('{class_names[0]}')" if class_names else "no class directory"
        raise ConfigError(
            f"{folder / 'train'} has {found}; a classifier needs two or more, one directory each."
        )
    return scan_classes(
        folder / split,
        class_names,
        whose=f"{folder / 'train'} does not have",
        source=f"{folder.name}/{split}",
    )


def scan_classes(
    folder: Path, class_names: tuple[str, ...], *, whose: str, source: str
) -> FileSplit:
    """Return the files in the class directories of `folder`, labeled by their places in `class_names`.

    Args:
        whose: ends the sentence that refuses another class, after "is a class that".
    """
    files: list[Path] = []
    labels: list[int] = []
    for directory in _class_directories(folder):
        name = in_one_line(directory.name)
        if name not in class_names:
            raise ConfigError(
                f"{in_one_line(directory)} is a class that {whose}.{did_you_mean(name, class_names)}"
            )
        members = _image_files(directory)
        if not members:
            raise ConfigError(f"{directory} has no image in it; add some or remove the directory.")
        files += members
        labels += [class_names.index(name)] * len(members)
    if not files:
        raise ConfigError(f"{folder} has no class directory in it.")
    return FileSplit(
        files=tuple(files),
        labels=tuple(labels),
        class_names=class_names,
        source=f"image folder {source}",
    )


def scan_unlabeled(folder: Path) -> FileSplit:
    """Return every image below `folder`, whatever directories it lies in, as one class named after the folder.

    This is what an OOD set needs: nothing is right on it, so that its labels say nothing.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a directory.")
    files = _image_files(folder)
    if not files:
        raise ConfigError(f"{folder} has no image in it.")
    return FileSplit(
        files=tuple(files),
        labels=(0,) * len(files),
        class_names=(folder.name,),
        source=f"image folder {folder.name}",
    )


def _class_directories(folder: Path) -> list[Path]:
    """Return the class directories of one split, sorted by name."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _image_files(folder: Path) -> list[Path]:
    """Return the image files below `folder`, sorted by path."""
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(
            f"{in_one_line(folder)} may not be read; allow it, for example with chmod -R u+rX."
        )
    return images_below(folder)


def images_below(folder: Path) -> list[Path]:
    """Return the image files below `folder`, sorted by path; what lies in hidden directories is not meant to be seen.

    Directories that are links are followed, each once: one may lead back to where it lies.
    """
    files: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for place, directories, names in os.walk(folder, followlinks=True):
        here = Path(place)
        stat = here.stat()
        if (stat.st_dev, stat.st_ino) in seen:
            directories.clear()
            continue
        seen.add((stat.st_dev, stat.st_ino))
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        found = (here / name for name in names if not name.startswith("."))
        files += [path for path in found if path.is_file() and is_image_file(path)]
    return sorted(files)
