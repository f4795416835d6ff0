"""Named, seeded, checksummed splits, and batches of them on the device."""

from lrformer.data.arrays import Split
from lrformer.data.augment import PLAIN, SHIFT_AND_FLIP, AugmentConfig
from lrformer.data.batches import Batch, DeviceBatches
from lrformer.data.catalog import DATASETS, list_datasets
from lrformer.data.corruptions import SEVERITIES, corrupt, corrupt_split, list_corruptions
from lrformer.data.image_file import read_image
from lrformer.data.loading import list_splits, load_dataset
from lrformer.data.source import RawSplit, Source
from lrformer.data.splits import select_classes, stratified_rows
from lrformer.data.two_moons import two_moons

__all__ = [
    "DATASETS",
    "PLAIN",
    "SEVERITIES",
    "SHIFT_AND_FLIP",
    "AugmentConfig",
    "Batch",
    "DeviceBatches",
    "RawSplit",
    "Source",
    "Split",
    "corrupt",
    "corrupt_split",
    "list_corruptions",
    "list_datasets",
    "list_splits",
    "load_dataset",
    "read_image",
    "select_classes",
    "stratified_rows",
    "two_moons",
]
