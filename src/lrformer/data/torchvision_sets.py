"""CIFAR-10, CIFAR-100, SVHN and ImageNet, read and checked by torchvision from the official files."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from lrformer.core import ConfigError
from lrformer.data.file_split import FileSplit, ImageFormat
from lrformer.data.source import RawSplit, Source

CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree
orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum
rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


def _read_cifar(dataset: str, split: str, root: Path, download: bool) -> RawSplit:
    """Return one split of CIFAR; torchvision compares every file with its published MD5 before it reads it."""
    from torchvision import datasets

    reader = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[dataset]
    with _official_files(dataset, root):
        data = reader(root, train=split == "train", download=download)
    return RawSplit(x=data.data, y=np.asarray(data.targets), source=f"torchvision {dataset}")


def _read_svhn(split: str, root: Path, download: bool) -> RawSplit:
    """Return one split of the cropped digits; the label 10 of the files is the digit 0."""
    from torchvision import datasets

    with _official_files("svhn", root):
        data = datasets.SVHN(root, split=split, download=download)
    return RawSplit(
        x=data.data.transpose(0, 2, 3, 1), y=np.asarray(data.labels), source="torchvision svhn"
    )


def _read_imagenet(split: str, root: Path, download: bool) -> FileSplit:  # noqa: ARG001 - not public
    """Return the files of ImageNet; `test` is the official validation set, since its test set has no labels."""
    from torchvision import datasets

    with _official_files("imagenet", root):
        data = datasets.ImageNet(root, split="train" if split == "train" else "val")
    return FileSplit(
        files=tuple(Path(path) for path, _ in data.samples),
        labels=tuple(label for _, label in data.samples),
        class_names=_distinct([names[0] for names in data.classes]),
        source="torchvision imagenet",
    )


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return names that tell classes apart: ImageNet has two of the name crane, a bird and a machine."""
    counts: Counter[str] = Counter()
    found = []
    for name in names:
        counts[name] += 1
        found.append(name if counts[name] == 1 else f"{name} {counts[name]}")
    return tuple(found)


@contextmanager
def _official_files(dataset: str, root: Path) -> Iterator[None]:
    """Turn what torchvision and the network raise into one error that says what to do without a network."""
    root.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"data set '{dataset}' could not be read from {root} ({str(error).rstrip('.')}). Put the official files "
            f"there, or prepared arrays (train-x.npy, train-y.npy, test-x.npy, test-y.npy) into "
            f"{root.parent}."
        ) from error


CIFAR10 = Source(
    summary="60,000 color images of 10 kinds of things, 32x32",
    class_names=tuple(CIFAR10_NAMES.split()),
    splits=("train", "test"),
    read=partial(_read_cifar, "cifar10"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = Source(
    summary="60,000 color images of 100 kinds of things, 32x32",
    class_names=tuple(CIFAR100_NAMES.split()),
    splits=("train", "test"),
    read=partial(_read_cifar, "cifar100"),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
SVHN = Source(
    summary="99,289 house-number digits in color, 32x32 (without the extra images)",
    class_names=tuple("0123456789"),
    splits=("train", "test"),
    read=_read_svhn,
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
)
IMAGENET = Source(
    summary="1.28 million photographs of 1,000 classes; the archives must be there already",
    class_names=(),
    splits=("train", "test"),
    read=_read_imagenet,
    image_format=ImageFormat(image_size=224, channels=3),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
