"""From a name or a path to a split that can be trained on."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.data.array_folder import ArrayFolder
from lrformer.data.arrays import Split, check_training_classes
from lrformer.data.cache import prepared_splits
from lrformer.data.catalog import DATASETS
from lrformer.data.file_split import ImageFormat
from lrformer.data.folder_layout import has_split_layout
from lrformer.data.image_folder import ImageFolder
from lrformer.data.named_set import NamedSet
from lrformer.data.splits import class_index, select_classes, stratified_rows
from lrformer.data.store import Store

DEFAULT_ROOT = Path("~/.cache/lrformer")
DEFAULT_VAL_FRACTION = 0.1
WHOLE_TRAINING_SET = "train+val"


def is_image_folder(name_or_path: str | Path) -> bool:
    """Return whether this is neither a named data set nor a folder of prepared arrays, so that files are scaled."""
    place = Path(name_or_path).expanduser()
    return str(name_or_path) not in DATASETS and not prepared_splits(place)


def check_skips(name_or_path: str | Path) -> None:
    """Raise where no image file would be left out, because these data are no folder of them."""
    if not is_image_folder(name_or_path):
        raise ConfigError(
            f"skip_unreadable is for a folder of image files, and '{name_or_path}' is none; leave it out "
            "(--skip-unreadable)."
        )


def load_dataset(
    name_or_path: str | Path,
    *,
    split: str = "train",
    root: str | Path | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    classes: Sequence[int | str] | None = None,
    class_names: Sequence[str] | None = None,
    val_fraction: float = DEFAULT_VAL_FRACTION,
    seed: int = 0,
    download: bool = True,
    skip_unreadable: bool = False,
) -> Split:
    """Return one split of a named data set, of a folder of images or of a folder of prepared arrays.

    Args:
        name_or_path: one of `list_datasets()`, or a folder: `train/ val/ [test/] [ood-*/]` with one directory a class,
            any directory of images (one unlabeled split, `test`), or arrays `<split>-x.npy` and `<split>-y.npy`.
        split: `train`, `val`, `test`, an `ood-*` directory, or `train+val` for the training set before the cut.
        root: where prepared arrays are kept and looked for, `~/.cache/lrformer` by default.
        image_size: side of the square that image files are scaled and cut to; needed if their sizes differ.
        channels: 1 or 3 to convert image files; by default they must all have the same.
        classes: keep these only, named or numbered, labeled 0, 1, ... in this order.
        class_names: of a directory of images without `train`: label it by the directories in it, which must be among
            these, in this order.
        val_fraction: share of every class that is cut from the training set for validation. A folder that has its
            own `val` keeps it.
        seed: of that cut. The test split never depends on it.
        download: whether torchvision may fetch the official files if nothing is prepared.
        skip_unreadable: leave out image files that cannot be decoded, and say so in a line, in place of an error; of a
            folder of images alone.
    """
    if skip_unreadable:
        check_skips(name_or_path)
    store = _find_store(
        name_or_path,
        root=Path(DEFAULT_ROOT if root is None else root).expanduser(),
        image_format=ImageFormat(image_size=image_size, channels=channels),
        class_names=None if class_names is None else tuple(class_names),
        download=download,
        skip_unreadable=skip_unreadable,
    )
    loaded = _open(store, split, val_fraction=val_fraction, seed=seed, classes=classes)
    _check_format(loaded, image_size=image_size, channels=channels)
    return loaded if classes is None else select_classes(loaded, classes)


def list_splits(name_or_path: str | Path, *, root: str | Path | None = None) -> list[str]:
    """Return the splits that `load_dataset` can give for this name or folder; nothing is read or downloaded."""
    splits = _find_store(
        name_or_path,
        root=Path(DEFAULT_ROOT if root is None else root).expanduser(),
        image_format=ImageFormat(),
        download=False,
    ).splits
    if "train" not in splits:
        return list(splits)
    rest = [split for split in splits if split not in {"train", "val"}]
    return ["train", "val", WHOLE_TRAINING_SET, *rest]


def has_validation_split(name_or_path: str | Path, *, root: str | Path | None = None) -> bool:
    """Return whether there is a validation split, and none has to be cut from the training set."""
    store = _find_store(
        name_or_path,
        root=Path(DEFAULT_ROOT if root is None else root).expanduser(),
        image_format=ImageFormat(),
        download=False,
    )
    return "val" in store.splits


def _find_store(
    name_or_path: str | Path,
    *,
    root: Path,
    image_format: ImageFormat,
    download: bool,
    class_names: tuple[str, ...] | None = None,
    skip_unreadable: bool = False,
) -> Store:
    """Return the place that a name or path stands for."""
    name = str(name_or_path)
    if name in DATASETS:
        return NamedSet(name=name, root=root, image_format=image_format, download=download)
    folder = Path(name_or_path).expanduser().resolve()
    if not folder.is_dir():
        if folder.exists():
            raise ConfigError(
                f"'{name}' is a file; give a folder of images or arrays, or a data set."
            )
        beside = Path(name_or_path).expanduser().parent
        siblings = [str(path) for path in beside.glob("*/")] if beside.is_dir() else []
        raise ConfigError(
            f"'{name}' is neither a data set nor a directory."
            f"{did_you_mean(name, [*DATASETS, *siblings])} "
            f"Known data sets: {', '.join(DATASETS)}."
        )
    if prepared_splits(folder):
        return ArrayFolder(folder=folder)
    return ImageFolder(
        folder=folder,
        root=root,
        image_format=image_format,
        class_names=class_names,
        skip_unreadable=skip_unreadable,
    )


def _way_to_train(store: Store) -> str:
    """Return what is to be done with a folder that looks as if its directories were classes, or nothing."""
    if not isinstance(store, ImageFolder):
        return ""
    if store.folder.name == "train":
        return f" If this is that train/, give the folder above it: {store.folder.parent}."
    inside = sorted(path.name for path in store.folder.iterdir() if path.is_dir())
    if not inside or has_split_layout(store.folder):
        return ""
    shown = ", ".join(inside[:3]) + (", ..." if len(inside) > 3 else "")
    return f" If its directories ({shown}) are classes, move them into {store.folder / 'train'}."


def _open(
    store: Store,
    split: str,
    *,
    val_fraction: float,
    seed: int,
    classes: Sequence[int | str] | None,
) -> Split:
    """Return a split of `store`, with the validation split cut from the training set where it has none."""
    splits = store.splits
    if split not in {"train", "val", WHOLE_TRAINING_SET}:
        if split not in splits:
            known = dict.fromkeys([*splits, "val"] if "train" in splits else splits)
            raise ConfigError(
                f"{store.name} has no split '{split}'.{did_you_mean(split, known)} "
                f"It has: {', '.join(known)}."
            )
        return store.open(split)
    if split == "val" and "val" in splits:
        return store.open("val")
    if "train" not in splits:
        raise ConfigError(
            f"{store.name} has no training set, so that '{split}' cannot be loaded from it. A folder has one as train/ "
            f"with a directory of images for each class, or as the arrays train-x.npy and train-y.npy.{_way_to_train(store)}"
        )
    train = store.open("train")
    needed = None if classes is None else {class_index(train, entry) for entry in classes}
    check_training_classes(train.y, train.class_names, where=train.name, needed=needed)
    if split == WHOLE_TRAINING_SET or "val" in splits:
        return train
    kept, cut = stratified_rows(
        train.y,
        fraction=val_fraction,
        seed=seed,
        where=train.name,
        class_names=train.class_names,
        needed=needed,
    )
    return dataclasses.replace(
        train.take(kept if split == "train" else cut), name=f"{store.name}/{split}"
    )


def _check_format(split: Split, *, image_size: int | None, channels: int | None) -> None:
    """Raise if arrays that were prepared before do not have the format that is asked for now."""
    shape = split.x.shape[1:]
    if image_size is not None and shape[:2] != (image_size, image_size):
        raise ConfigError(
            f"image_size ({image_size}) is for image files, but {split.name} holds arrays of shape "
            f"{shape}; scale them on the device, with the image_size of DeviceBatches."
        )
    if channels is not None and shape[-1] != channels:
        raise ConfigError(
            f"channels ({channels}) is for image files, but {split.name} holds arrays of shape "
            f"{shape}."
        )
