"""A mapping from public names to things, where a duplicate is an error and a near miss gets a hint."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, cast

from lrformer.core.errors import ConfigError

T = TypeVar("T")
Entry = TypeVar("Entry")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the nearest of `known`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


class Registry(Generic[T]):
    """Named things of one `kind`, in the order in which they were registered."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Return a decorator that files what it decorates under `name`."""

        # `Entry` is some `T`: a type of its own, so that a decorated class stays itself.
        def file_under_name(entry: Entry) -> Entry:
            if name in self._entries:
                raise ConfigError(f"{self.kind} '{name}' is registered twice; choose another name.")
            self._entries[name] = cast("T", entry)
            return entry

        return file_under_name

    def __getitem__(self, name: str) -> T:
        if not isinstance(name, str):
            raise ConfigError(
                f"{self.kind} ({name!r}) must be a name; known: {', '.join(self._entries)}."
            )
        try:
            return self._entries[name]
        except KeyError:
            raise ConfigError(
                f"unknown {self.kind} '{name}'.{did_you_mean(name, self._entries)} "
                f"Known: {', '.join(self._entries)}."
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def names(self) -> list[str]:
        """Return the registered names, in order of registration."""
        return list(self._entries)
