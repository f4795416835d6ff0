"""A folder of prepared arrays, used where it lies: this is how a run starts without a network."""

from dataclasses import dataclass
from pathlib import Path

from lrformer.data.arrays import Split
from lrformer.data.cache import (
    GIVEN_ARRAYS,
    images_path,
    load_array,
    open_prepared,
    prepared_splits,
    read_manifest,
    write_manifest,
)
from lrformer.data.catalog import DATASETS
from lrformer.data.file_split import read_file_names
from lrformer.data.folder_layout import OOD_PREFIX
from lrformer.data.overlap import NamedImages, check_no_overlap
from lrformer.data.source import Source


@dataclass(frozen=True, kw_only=True)
class ArrayFolder:
    """A store for `<split>-x.npy` and `<split>-y.npy`; the manifests are made where they are missing."""

    folder: Path

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.name

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits of which both arrays are there."""
        return tuple(prepared_splits(self.folder))

    @property
    def known(self) -> Source | None:
        """Return the data set that the folder is named after, if there is one."""
        is_known = self.name in DATASETS
        return DATASETS[self.name] if is_known else None

    def open(self, split: str) -> Split:
        """Return one split; a folder named after a known set has its class names and statistics."""
        splits = self.splits
        class_names = self._class_names()
        if any(self._is_stale(name, class_names) for name in splits):
            self._make_manifests(class_names)
        prepared = open_prepared(self.folder, split, class_names=class_names)
        reference = prepared.manifest
        if "train" in splits and split != "train":
            # Not from its file, which a folder that may not be written to lacks.
            reference = open_prepared(self.folder, "train", class_names=class_names).manifest
        mean, std = reference.mean, reference.std
        known = self.known
        if known is not None and known.mean is not None and known.std is not None:
            is_alike = len(known.mean) == prepared.x.shape[-1]
            mean, std = (known.mean, known.std) if is_alike else (mean, std)
        return Split(
            name=f"{self.name}/{split}",
            x=prepared.x,
            y=prepared.y,
            class_names=prepared.manifest.class_names,
            mean=mean,
            std=std,
            files=read_file_names(self.folder, split),
            digest=prepared.manifest.digest,
        )

    def _is_stale(self, split: str, class_names: tuple[str, ...] | None) -> bool:
        """Return whether the manifest of a split is missing, or one that we made of other classes than there are now."""
        manifest = read_manifest(self.folder, split)
        if manifest is None:
            return True
        is_ours = manifest.source == GIVEN_ARRAYS and not split.startswith(OOD_PREFIX)
        return is_ours and class_names is not None and manifest.class_names != class_names

    def _make_manifests(self, class_names: tuple[str, ...] | None) -> None:
        """Write the manifests that are missing or stale, unless two splits share an image.

        Published sets are taken as they are: some hold the same photograph twice, and are compared on it all the same.
        """
        if self.known is None:
            check_no_overlap(self._named_images(split) for split in self.splits)
        for split in self.splits:
            if class_names is not None and self._is_stale(split, class_names):
                write_manifest(self.folder, split, class_names=class_names, source=GIVEN_ARRAYS)

    def _class_names(self) -> tuple[str, ...] | None:
        """Return the names that the labels of every split stand for: the set's, else those of the training set."""
        if self.known is not None and self.known.class_names:
            return self.known.class_names
        if "train" in self.splits:
            return open_prepared(self.folder, "train").manifest.class_names
        return None

    def _named_images(self, split: str) -> NamedImages:
        """Return the images of a split, each named by its row."""
        path = images_path(self.folder, split)
        images = load_array(path)
        return NamedImages(
            split=split, images=images, names=(f"{path} row {row}" for row in range(len(images)))
        )
