"""The data sets that have a name. Adding one is a line here and its `Source` in a file of its own."""

from lrformer.core import Registry
from lrformer.data.digits import DIGITS
from lrformer.data.source import Source
from lrformer.data.torchvision_sets import CIFAR10, CIFAR100, IMAGENET, SVHN
from lrformer.data.two_moons import TWO_MOONS

DATASETS: Registry[Source] = Registry("data set")
DATASETS.register("two_moons")(TWO_MOONS)
DATASETS.register("digits")(DIGITS)
DATASETS.register("cifar10")(CIFAR10)
DATASETS.register("cifar100")(CIFAR100)
DATASETS.register("svhn")(SVHN)
DATASETS.register("imagenet")(IMAGENET)


def list_datasets() -> list[str]:
    """Return the names that `load_dataset` knows; it takes the path of a folder as well."""
    return DATASETS.names()
