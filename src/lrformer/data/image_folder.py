"""A folder of image files, prepared into the cache on its first use and again when it has changed."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lrformer.data.arrays import Split
from lrformer.data.cache import (
    PREPARE_AGAIN,
    images_path,
    is_prepared,
    load_array,
    open_prepared,
    preparing,
    read_manifest,
    write_manifest,
)
from lrformer.data.file_split import (
    FileSplit,
    ImageFormat,
    fingerprint,
    fingerprint_of_readable,
    read_file_names,
    read_left_out,
    write_files,
)
from lrformer.data.folder_layout import (
    has_split_layout,
    labeled_splits,
    ood_splits,
    scan_classes,
    scan_labeled,
    scan_unlabeled,
)
from lrformer.data.overlap import NamedImages, check_no_overlap
from lrformer.data.preparation_lines import say_once

ONLY_SPLIT = "test"
WAY_TO_SKIP = "Pass skip_unreadable=True (--skip-unreadable of train, evaluate and reproduce) to leave out what cannot be read."
LONGEST_NAME = 100


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """A store for `train/ val/ [test/] [ood-*/]`, or for any directory of images as one split, `test`.

    Attributes:
        class_names: by which the one split is labeled, from the directories in it or in its `test`; without them it
            is not.
        skip_unreadable: whether files that cannot be decoded are left out, in place of an error.
    """

    folder: Path
    root: Path
    image_format: ImageFormat
    class_names: tuple[str, ...] | None = None
    skip_unreadable: bool = False

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.name

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the directories that are splits; `test` alone where there is no `train`."""
        if not has_split_layout(self.folder):
            return (ONLY_SPLIT,)
        return (*labeled_splits(self.folder), *ood_splits(self.folder))

    @property
    def cache(self) -> Path:
        """Return where the arrays of this folder in this format are kept."""
        place = hashlib.sha256(
            f"{self.folder}\0{self.image_format}".encode(errors="surrogateescape")
        ).hexdigest()[:12]
        # A component of a path has 255 bytes at most; the digest tells two folders apart.
        shown = self.name.encode(errors="surrogateescape")[:LONGEST_NAME]
        return self.root / f"{shown.decode(errors='ignore')}-{place}"

    def open(self, split: str) -> Split:
        """Return one split; every labeled split is prepared with it, so that an overlap is found now, also with unknown images."""
        if has_split_layout(self.folder):
            splits = {name: scan_labeled(self.folder, name) for name in labeled_splits(self.folder)}
            if split not in splits:
                splits[split] = scan_unlabeled(self.folder / split)
            self._prepare(splits)
            reference = "train"
        else:
            self._prepare({split: self._scan_only()})
            reference = split
        prepared = open_prepared(self.cache, split)
        statistics = read_manifest(self.cache, reference)
        assert statistics is not None
        self._say_left_out(split, num_kept=len(prepared.y))
        return Split(
            name=f"{self.name}/{split}",
            x=prepared.x,
            y=prepared.y,
            class_names=prepared.manifest.class_names,
            mean=statistics.mean,
            std=statistics.std,
            files=read_file_names(self.cache, split),
            digest=prepared.manifest.digest,
        )

    def _scan_only(self) -> FileSplit:
        """Return the files of a folder without `train`."""
        if self.class_names is None:
            return scan_unlabeled(self.folder)
        inner = self.folder / ONLY_SPLIT
        return scan_classes(
            inner if inner.is_dir() else self.folder,
            self.class_names,
            whose=f"is none of {', '.join(self.class_names)}",
            source=self.name,
        )

    def _prepare(self, splits: Mapping[str, FileSplit]) -> None:
        """Bring the arrays of these splits up to date; no manifest is written while two of them overlap."""
        marks = {name: fingerprint(split, self.image_format) for name, split in splits.items()}
        if not self._stale(marks):
            return
        with preparing(self.cache):
            self._write(splits, marks)

    def _stale(self, marks: Mapping[str, str]) -> list[str]:
        return [name for name, mark in marks.items() if not self._is_current(name, mark)]

    def _is_current(self, split: str, mark: str) -> bool:
        """Return whether a split is prepared; where every file could be read it is the same with skipping and without."""
        found = self._mark(split)
        return found == mark or (self.skip_unreadable and found == fingerprint_of_readable(mark))

    def _write(self, splits: Mapping[str, FileSplit], marks: Mapping[str, str]) -> None:
        """Prepare what is stale still, now that no other process prepares."""
        stale = self._stale(marks)
        for name in stale:
            write_files(
                self.cache,
                name,
                splits[name],
                self.image_format,
                skip_unreadable=self.skip_unreadable,
                way_out=WAY_TO_SKIP,
            )
        if stale:
            check_no_overlap(self._named_images(name) for name in splits)
        for name in stale:
            split, mark = splits[name], marks[name]
            is_whole = not read_left_out(self.cache, name)
            write_manifest(
                self.cache,
                name,
                class_names=split.class_names,
                source=split.source,
                fingerprint=mark if is_whole else fingerprint_of_readable(mark),
            )

    def _say_left_out(self, split: str, *, num_kept: int) -> None:
        """Say that files of a split were left out, where some were."""
        left_out = read_left_out(self.cache, split)
        if left_out:
            say_once(
                f"warning: {self.name}/{split}: {len(left_out):,} of {num_kept + len(left_out):,} images cannot be read and "
                f"are left out, the first is {left_out[0]}"
            )

    def _named_images(self, split: str) -> NamedImages:
        """Return the images of a split that was written, each with the name of its file."""
        images = load_array(images_path(self.cache, split), way_out=PREPARE_AGAIN)
        return NamedImages(
            split=split, images=images, names=read_file_names(self.cache, split) or ()
        )

    def _mark(self, split: str) -> str | None:
        """Return the fingerprint of the files that were prepared, or None if they were not."""
        manifest = read_manifest(self.cache, split) if is_prepared(self.cache, split) else None
        return None if manifest is None else manifest.fingerprint
