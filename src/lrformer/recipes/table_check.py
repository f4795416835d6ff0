"""What is looked at before the first run of a table: nothing that cannot work costs a training."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lrformer.core import ConfigError, LRFormerError, to_record
from lrformer.data import list_splits, load_dataset, read_image
from lrformer.data.folder_layout import (
    has_split_layout,
    labeled_splits,
    ood_splits,
    scan_labeled,
    scan_unlabeled,
)
from lrformer.data.image_file import UnreadableImageError
from lrformer.data.image_folder import WAY_TO_SKIP
from lrformer.data.loading import is_image_folder
from lrformer.evaluation.run_data import (
    OTHER_CLASSES,
    check_other_classes,
    check_samples,
    check_unknown,
    describe_samples,
    ood_name,
    ood_place,
)
from lrformer.recipes.table_record import TableRecord
from lrformer.recipes.table_run import PlannedRun
from lrformer.training import TrainConfig
from lrformer.training.backbone import file_image_size
from lrformer.training.running import check_data, check_run
from lrformer.training.start import take_model_of_start


def check_runs(due: Sequence[PlannedRun], record: TableRecord, path: Path) -> None:
    """Build every row once, on its data.

    Args:
        due: the runs that will be begun.
        path: of the record.

    Raises:
        ConfigError: which names the row, where it is one row that cannot work.
    """
    for run in due:
        _check_written(run)
    if due:
        _check_shared(due[0].config)
    for run in {run.row.name: run for run in reversed(due)}.values():
        try:
            split = check_run(run.config)
        except LRFormerError as error:
            raise ConfigError(f"row '{run.row.name}' cannot be made: {error}") from error
        # Images that were prepared otherwise are other arrays.
        known = {
            entry.data_digest
            for entry in record.runs
            if entry.data_digest is not None
            and _preparation(entry.config) == _preparation(run.config)
        }
        if known and split.digest is not None and split.digest not in known:
            raise ConfigError(
                f"{path} has runs on other data than those of {run.config.data} now: their digest is "
                f"{', '.join(sorted(known))} there and {split.digest} here. Put the data back, or choose another record."
            )


def _check_shared(config: TrainConfig) -> None:
    """Raise for data or a batch size that no row can be trained with: these are not the row's."""
    try:
        config = take_model_of_start(config)
        file_image_size(config)
    except LRFormerError:
        return  # the row's own, which is raised with its name
    check_data(config)


def _preparation(config: TrainConfig) -> tuple[int | None, int | None, bool] | None:
    """Return how images are prepared, or None for a model that this version does not know."""
    try:
        return file_image_size(config), config.channels, config.skip_unreadable
    except ConfigError:
        return None


def _check_written(run: PlannedRun) -> None:
    """Raise for a setting that a record cannot hold."""
    try:
        json.dumps([to_record(run.config), run.variant], allow_nan=False)
    except ValueError as error:
        raise ConfigError(
            f"row '{run.row.name}' has a setting that is not a finite number ({run.variant}); give a number."
        ) from error


def check_unknown_sets(config: TrainConfig, ood: tuple[str, ...]) -> None:
    """Raise where an unknown set is not there, is empty, of another kind, known, or has the name of another."""
    for spec in ood:
        if spec == OTHER_CLASSES:
            check_other_classes(config)
            continue
        check_unknown(config.data, spec)
        place, split = ood_place(spec, root=config.root)
        names = list_splits(place, root=config.root)
        if split not in names:
            raise ConfigError(f"{place} has no split '{split}'; it has {', '.join(names)}.")
        if is_image_folder(place):
            folder = Path(place).expanduser().resolve()
            _check_files(folder, split, skip_unreadable=config.skip_unreadable)
        found = _samples(config, place, split)
        check_samples(spec, found, known=_samples(config, config.data, "train"))
    for name, number in Counter(map(ood_name, ood)).items():
        if number > 1:
            raise ConfigError(
                f"{number} unknown sets are named '{name}' ({', '.join(ood)}); name each once, or give their folders "
                "different names."
            )


def _samples(config: TrainConfig, place: str, split: str) -> str:
    """Return what a split holds, as `describe_samples` says it; files are images."""
    if is_image_folder(place):
        return "images"
    loaded = load_dataset(
        place, split=split, root=config.root, val_fraction=config.val_fraction, seed=config.seed
    )
    return describe_samples(loaded)


def _check_files(folder: Path, split: str, *, skip_unreadable: bool) -> None:
    """Raise where a split of an image folder has no image; only the first one is read, an evaluation reads all."""
    if not has_split_layout(folder):
        found = scan_unlabeled(folder)
    else:
        labeled = {name: scan_labeled(folder, name) for name in labeled_splits(folder)}
        is_unknown = split in ood_splits(folder)
        # A validation split that is not there is cut from the training set.
        found = (
            scan_unlabeled(folder / split) if is_unknown else labeled.get(split, labeled["train"])
        )
    for path in found.files:
        try:
            read_image(path, channels=3)
        except UnreadableImageError as error:
            if not skip_unreadable:
                raise ConfigError(f"{error} {WAY_TO_SKIP}") from error
        else:
            return
    raise ConfigError(f"{found.source}: no image in it can be read.")
