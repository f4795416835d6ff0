"""What every kind of place that holds data can do: name its splits, and open one."""

from typing import Protocol, runtime_checkable

from lrformer.data.arrays import Split


@runtime_checkable
class Store(Protocol):
    """A place with whole splits in it; cutting a validation split off is left to the loader."""

    @property
    def name(self) -> str:
        """Return what a user calls this place."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits that can be opened."""
        ...

    def open(self, split: str) -> Split:
        """Return one of `splits`, read, checked, and with the statistics of the training images."""
        ...
