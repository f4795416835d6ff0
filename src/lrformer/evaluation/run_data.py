"""The data that a run is judged by: its own test set, unknown sets, corrupted versions, each seen as the run sees it."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.data import (
    DATASETS,
    SEVERITIES,
    Split,
    list_corruptions,
    list_splits,
    load_dataset,
    select_classes,
)
from lrformer.data.channels import match_channels
from lrformer.data.folder_layout import LABELED_SPLITS, OOD_PREFIX, has_split_layout
from lrformer.data.loading import WHOLE_TRAINING_SET, has_validation_split, is_image_folder
from lrformer.evaluation.made_sets import MADE
from lrformer.training import RunConfig, TrainConfig

OTHER_CLASSES = "other-classes"
ALL_CORRUPTIONS = "all"


def load_test_split(
    config: RunConfig, *, data: str | None = None, root: str | Path | None = None
) -> Split:
    """Return the test split of the data that the run was trained on; the validation split where there is none.

    Args:
        data: other labeled data with classes of the run, `photos/` or `photos/:val`; a folder without `train` may hold
            the class directories itself or in `test`.
    """
    place, split = (_own_data(config), None) if data is None else parse_place(data)
    if data is None:
        _check_own(config, place, root=root)
    if split is None:
        names = list_splits(place, root=root or config.train.root)
        split = next((name for name in ("test", "val") if name in names), names[0])
    # Chosen classes are those of the run's own data; of other data all must be the run's.
    classes = config.train.classes if data is None else None
    return _labeled_like(
        config, _load(config, place, split, root=root, classes=classes, is_labeled=True)
    )


def known_name(test: Split, *, data: str | None, taken: Collection[str]) -> str:
    """Return the name of the known data in reports: of a folder of class directories that of the folder alone.

    Args:
        test: that `load_test_split` returned for `data`.
        taken: names of other sets; where the folder's is among them, the split's own name stays.
    """
    if data is None:
        return test.name
    place = parse_place(data)[0]
    if place in DATASETS or not is_image_folder(place):
        return test.name
    folder = _resolve(place)
    if has_split_layout(folder) or (folder / "test").is_dir() or folder.name in taken:
        return test.name
    return folder.name or test.name


def default_ood(
    config: RunConfig, *, data: str | None = None, root: str | Path | None = None
) -> list[str]:
    """Return the unknown sets that come with the run's own data, or with `data`: `ood-*` splits, and classes left out."""
    place = _own_data(config) if data is None else parse_place(data)[0]
    names = list_splits(place, root=root or config.train.root)
    found = [f"{place}:{name}" for name in names if name.startswith(OOD_PREFIX)]
    is_own = data is None and config.train.classes is not None
    return [*found, OTHER_CLASSES] if is_own else found


def _own_data(config: RunConfig) -> str:
    """Return what the run was trained on, or raise where it is not there any more."""
    data = config.train.data
    if data in DATASETS or Path(data).expanduser().is_dir():
        return data
    where = "" if Path(data).expanduser().is_absolute() else f", seen from {Path.cwd()}"
    raise ConfigError(
        f"'{data}', which the run was trained on, is not there{where}; say where it lies now, or what else to measure "
        "on: data=... (--data on the command line)."
    )


def _check_own(config: RunConfig, place: str, *, root: str | Path | None) -> None:
    """Raise where a folder has other training data than the run saw: what else is there is then not its own either."""
    if config.data_digest is None or place in DATASETS:
        return
    if "train" not in list_splits(place, root=root or config.train.root):
        return
    # Whole: cutting a validation split from it may need more samples of the classes that the run left out.
    found = _load(config, place, WHOLE_TRAINING_SET, root=root).digest
    if found not in (None, config.data_digest):
        raise ConfigError(
            f"the training data in '{place}' are not those that the run was trained on: they have changed, or lie elsewhere "
            f"now. Say where they lie, or, to measure on what is there as it is, name it: data='{place}' (--data on the "
            "command line)."
        )


def _labeled_like(config: RunConfig, split: Split) -> Split:
    """Return a split with the labels of the run, or raise where it has a class that the run does not know."""
    if split.class_names == config.class_names:
        return split
    present = [split.class_names[label] for label in np.unique(split.y)]
    foreign = [name for name in present if name not in config.class_names]
    if foreign:
        raise ConfigError(
            f"{split.name} has classes that the run was not trained on: {', '.join(foreign)}. It knows "
            f"{', '.join(config.class_names)}; unknown data belong to ood (--ood)."
        )
    places = np.array(
        [
            config.class_names.index(name) if name in config.class_names else -1
            for name in split.class_names
        ]
    )
    return dataclasses.replace(split, y=places[np.asarray(split.y)], class_names=config.class_names)


def load_ood_split(
    config: RunConfig, spec: str, *, root: str | Path | None = None
) -> tuple[str, Split]:
    """Return the name for reports and the data of one unknown set.

    Args:
        spec: a data set or folder, `svhn`, `photos/`, optionally with the split, `photos/:ood-faces`; or
            `other-classes`, those of the run's own data that it was not trained on.
    """
    if spec == OTHER_CLASSES:
        return OTHER_CLASSES, _load_other_classes(config, root=root)
    place, split = ood_place(spec, root=root or config.train.root)
    loaded = _load(config, place, split, root=root)
    return ood_name(spec), loaded


def ood_place(spec: str, *, root: str | Path | None) -> tuple[str, str]:
    """Return place and split of an unknown set; the split is `test`, else `val`, where none is named."""
    place, split = parse_place(spec)
    if split is None:
        names = list_splits(place, root=root)
        split = next((name for name in ("test", "val") if name in names), names[0])
    return place, split


def describe_samples(split: Split) -> str:
    """Return what a split holds: `images` or `points`."""
    return "images" if split.is_image else "points"


def check_samples(spec: str, found: str, *, known: str) -> None:
    """Raise where an unknown set holds other samples than the run reads, both as `describe_samples` says them."""
    if found != known:
        raise ConfigError(
            f"'{spec}' holds {found}, and the run reads {known}; an unknown set must hold {known} too."
        )


def seen_part(
    config: RunConfig, split: Split, *, data: str | None = None, root: str | Path | None = None
) -> str | None:
    """Return which part of what the run was made from a split is: `train`, `val`, `train+val`; None for any other.

    Args:
        split: that `load_test_split` returned for `data`.
    """
    place, asked = (config.train.data, None) if data is None else parse_place(data)
    part = asked or split.name.rpartition("/")[2]
    if part in ("train", "val", WHOLE_TRAINING_SET):
        if data is not None and not _is_own_place(config, place, root=root):
            return None
        if part == WHOLE_TRAINING_SET:
            # Nothing is cut from the training set where there is a validation split beside it.
            is_cut = not has_validation_split(place, root=root or config.train.root)
            return part if is_cut else "train"
        return part
    if split.digest is not None and split.digest == config.data_digest:
        return "train"
    # A directory of the run's own folder is a place, too.
    own, path = _resolve(config.train.data), _resolve(place)
    is_inside = config.train.data not in DATASETS and place not in DATASETS and path.parent == own
    return path.name if is_inside and path.name in LABELED_SPLITS and path.name != "test" else None


def _is_own_place(config: RunConfig, place: str, *, root: str | Path | None) -> bool:
    """Return whether a place is where the run's data lay, or holds the same training data."""
    own = config.train.data
    if place == own:
        return True
    if own not in DATASETS and place not in DATASETS and _resolve(place) == _resolve(own):
        return True
    if config.data_digest is None or "train" not in list_splits(
        place, root=root or config.train.root
    ):
        return False
    return _load(config, place, WHOLE_TRAINING_SET, root=root).digest == config.data_digest


def _resolve(place: str) -> Path:
    return Path(place).expanduser().resolve()


def check_unknown(data: str, spec: str) -> None:
    """Raise where an unknown set is named that is part of the data which a run was trained on."""
    if spec == OTHER_CLASSES:
        return
    if spec == MADE:
        raise ConfigError(
            f"'{MADE}' outliers are no unknown data: `lrformer evaluate --ood {MADE}` makes them of a run's test images. A "
            f"folder of that name is ./{MADE}."
        )
    place, split = parse_place(spec)
    if place in DATASETS or data in DATASETS:
        is_own = place == data
    else:
        whole, part = _resolve(data), _resolve(place)
        is_own = part.is_relative_to(whole) or whole.is_relative_to(part)
        if part != whole and part.is_relative_to(whole):
            split = part.relative_to(whole).parts[0]
    if is_own and not (split or "").startswith(OOD_PREFIX):
        raise ConfigError(
            f"'{spec}' is what the run was trained or is measured on, and not unknown to it; {_unknown_of(data)}the classes "
            f"that were left out are '{OTHER_CLASSES}'."
        )


def _unknown_of(data: str) -> str:
    """Return the beginning of a sentence that says where the unknown sets of a folder are; a data set has none."""
    if data in DATASETS:
        return ""
    return f"its unknown sets are {data}:{OOD_PREFIX}NAME, where it has any, and "


def ood_name(spec: str) -> str:
    """Return the name of an unknown set in reports: that of the data set, of the folder, or of an `ood-*` split."""
    if spec == OTHER_CLASSES:
        return spec
    place, split = parse_place(spec)
    if split is not None and split.startswith(OOD_PREFIX):
        return split
    return place if place in DATASETS else _resolve(place).name


def parse_corruptions(specs: Sequence[str]) -> list[tuple[str, int]]:
    """Return kinds and severities: of `fog:3` one, of `fog` all five, of `all` every kind at every severity."""
    known = list_corruptions()
    wanted: dict[tuple[str, int], None] = {}
    for spec in specs:
        kind, _, severity = spec.partition(":")
        if kind != ALL_CORRUPTIONS and kind not in known:
            raise ConfigError(
                f"unknown corruption '{kind}'.{did_you_mean(kind, [*known, ALL_CORRUPTIONS])} Known: "
                f"{ALL_CORRUPTIONS}, {', '.join(known)}."
            )
        if severity and severity not in map(str, SEVERITIES):
            raise ConfigError(f"corruption '{spec}': severity ({severity}) must be one of 1 to 5.")
        for name in known if kind == ALL_CORRUPTIONS else [kind]:
            for level in [int(severity)] if severity else SEVERITIES:
                wanted[name, level] = None
    return list(wanted)


def parse_place(spec: str) -> tuple[str, str | None]:
    """Return place and split of `PLACE` or `PLACE:SPLIT`; a place with a colon in its name is still a place."""
    if spec in DATASETS or Path(spec).expanduser().is_dir():
        return spec, None
    place, colon, split = spec.rpartition(":")
    if colon and (place in DATASETS or Path(place).expanduser().is_dir()):
        return place, split
    known = [*DATASETS, OTHER_CLASSES]
    raise ConfigError(
        f"'{spec}' is neither a data set nor a directory.{did_you_mean(spec, known)} Known data sets: "
        f"{', '.join(known)}."
    )


def _load(
    config: RunConfig,
    place: str,
    split: str,
    *,
    root: str | Path | None,
    classes: Sequence[int | str] | None = None,
    is_labeled: bool = False,
) -> Split:
    """Return a split with the channels of the run; image files are scaled to the run's size as they are read."""
    train = config.train
    is_files = is_image_folder(place)
    # The run's own folder is asked for as training asked, so that its arrays need not be prepared again.
    channels = train.channels if place == train.data else config.channels
    loaded = load_dataset(
        place,
        split=split,
        root=root or train.root,
        image_size=config.img_size if is_files else None,
        channels=channels if is_files else None,
        classes=classes,
        class_names=config.class_names if is_labeled else None,
        val_fraction=train.val_fraction,
        seed=train.seed,
        skip_unreadable=train.skip_unreadable and is_files,
    )
    return match_channels(loaded, config.channels)


def check_other_classes(config: TrainConfig) -> None:
    """Raise where no class is left that a run was not trained on."""
    if config.classes is None:
        raise ConfigError(
            f"'{OTHER_CLASSES}' needs a run that was trained on some of the classes; this one knows all."
        )


def _load_other_classes(config: RunConfig, *, root: str | Path | None) -> Split:
    train = config.train
    check_other_classes(train)
    names = list_splits(train.data, root=root or train.root)
    if "test" in names:
        part = "test"
    elif has_validation_split(train.data, root=root or train.root):
        part = "val"
    else:
        part = WHOLE_TRAINING_SET  # of whose other classes the run has seen nothing
    whole = _load(config, train.data, part, root=root)
    known = set(config.class_names)
    others = [number for number, name in enumerate(whole.class_names) if name not in known]
    return select_classes(whole, others)
