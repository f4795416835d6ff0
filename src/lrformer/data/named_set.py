"""A registered data set, prepared into `<root>/<name>/` on its first use."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lrformer.core import ConfigError
from lrformer.data.arrays import Split, channel_statistics
from lrformer.data.cache import (
    is_prepared,
    manifest_path,
    open_prepared,
    preparing,
    write_arrays,
    write_manifest,
)
from lrformer.data.catalog import DATASETS
from lrformer.data.file_split import FileSplit, ImageFormat, read_file_names, write_files
from lrformer.data.source import Source


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A store for one of the registered data sets; `image_format` overrides the one of a set of files."""

    name: str
    root: Path
    image_format: ImageFormat
    download: bool

    @property
    def source(self) -> Source:
        """Return what the registry knows of this set."""
        return DATASETS[self.name]

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits that the set has officially."""
        return self.source.splits

    def open(self, split: str) -> Split:
        """Return one split: from the cache, else from the official files, which may be downloaded."""
        return self._open_cached(split) if self.source.is_cached else self._open_embedded(split)

    def _open_embedded(self, split: str) -> Split:
        raw, train = (self.source.read(s, self.root, self.download) for s in (split, "train"))
        assert not isinstance(raw, FileSplit)
        assert not isinstance(train, FileSplit)
        if raw.x.ndim == 4:
            mean, std = channel_statistics(train.x)
        else:
            mean, std = (tuple(v.tolist()) for v in (train.x.mean(axis=0), train.x.std(axis=0)))
        return Split(
            name=f"{self.name}/{split}",
            x=raw.x,
            y=raw.y,
            class_names=self.source.class_names,
            mean=mean,
            std=std,
        )

    def _open_cached(self, split: str) -> Split:
        folder = self.root / self.name
        if not self._is_ready(folder, split):
            with preparing(folder):
                if not is_prepared(folder, split):
                    self._prepare(folder, split)
                elif not self._is_ready(folder, split):
                    self._describe(folder, split)
        prepared = open_prepared(folder, split, class_names=self.source.class_names or None)
        mean, std = self.source.mean, self.source.std
        if mean is None or std is None:
            mean, std = prepared.manifest.mean, prepared.manifest.std
        if len(mean) != prepared.x.shape[3]:
            raise ConfigError(
                f"{folder}: the images of {split} have {prepared.x.shape[3]} channels; those of "
                f"{self.name} have {len(mean)}."
            )
        return Split(
            name=f"{self.name}/{split}",
            x=prepared.x,
            y=prepared.y,
            class_names=prepared.manifest.class_names,
            mean=mean,
            std=std,
            files=read_file_names(folder, split),
            digest=prepared.manifest.digest,
        )

    def _is_ready(self, folder: Path, split: str) -> bool:
        """Return whether the arrays are there, and what their labels stand for is known."""
        is_described = (
            bool(self.source.class_names)
            or manifest_path(folder, split).is_file()
            or read_file_names(folder, split) is None  # somebody's own arrays, which need no names
        )
        return is_prepared(folder, split) and is_described

    def _describe(self, folder: Path, split: str) -> None:
        """Write the manifest of files whose preparation was stopped after their arrays."""
        raw = self.source.read(split, folder / "official", self.download)
        assert isinstance(raw, FileSplit)
        write_manifest(folder, split, class_names=raw.class_names, source=raw.source)

    def _prepare(self, folder: Path, split: str) -> None:
        """Write the arrays of a split that is not there yet."""
        raw = self.source.read(split, folder / "official", self.download)
        if isinstance(raw, FileSplit):
            image_format = self.image_format
            if image_format == ImageFormat() and self.source.image_format is not None:
                image_format = self.source.image_format
            write_files(folder, split, raw, image_format)
            class_names = raw.class_names
        else:
            write_arrays(folder, split, raw.x, raw.y.astype(np.int64))
            class_names = self.source.class_names
        write_manifest(folder, split, class_names=class_names, source=raw.source)
