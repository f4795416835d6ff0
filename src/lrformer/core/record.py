"""Frozen dataclasses to plain JSON values and back, without pickles and without guessing."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, Union

from lrformer.core.errors import ConfigError
from lrformer.core.registry import did_you_mean

T = TypeVar("T")

# What a hint that is no dataclass may stand for, such as the settings of any attention that is registered.
_OPEN: dict[type, Callable[[], Iterable[type]]] = {}


def restore_as(hint: type, classes: Callable[[], Iterable[type]]) -> None:
    """Let a record be restored where `hint` is asked for, as the one of `classes()` that it names."""
    _OPEN[hint] = classes


def to_record(value: Any) -> Any:
    """Return `value` as JSON values; a dataclass becomes a dict of its fields plus its class name under `kind`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_record(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {str(key): to_record(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_record(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"a {type(value).__name__} cannot be written to a record; use plain values.")


def from_record(cls: type[T], record: Any) -> T:
    """Return the `cls` dataclass that `to_record` wrote; an unknown or missing field is an error."""
    if not isinstance(record, dict):
        raise ConfigError(f"a record of {cls.__name__} must be an object, got {record!r}.")
    given = {key: item for key, item in record.items() if key != "kind"}
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    for name in given:
        if name not in fields:
            raise ConfigError(f"{cls.__name__} has no field '{name}'.{did_you_mean(name, fields)}")
    for name, field in fields.items():
        has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        if name not in given and not has_default:
            raise ConfigError(f"a record of {cls.__name__} lacks its field '{name}'.")
    return cls(**{name: _restore(hints[name], item) for name, item in given.items()})


def _restore(hint: Any, item: Any) -> Any:
    """Return `item` as the type that `hint` asks for: nested dataclasses and tuples are rebuilt."""
    if isinstance(hint, type) and hint in _OPEN:
        return _restore_open(hint, item)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if dataclasses.is_dataclass(option)]
        kind = item.get("kind") if isinstance(item, dict) else None
        for option in options:
            if isinstance(option, type) and option.__name__ == kind:
                return from_record(option, item)
        if isinstance(item, list):
            tuples = [o for o in typing.get_args(hint) if typing.get_origin(o) is tuple]
            return _restore(tuples[0], item) if tuples else item
        if kind is not None:
            names = [option.__name__ for option in options if isinstance(option, type)]
            raise ConfigError(f"a record of kind '{kind}' is none of {', '.join(names)}.")
        return item
    if origin is tuple and isinstance(item, list):
        inner = typing.get_args(hint)[0]
        return tuple(_restore(inner, part) for part in item)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_record(hint, item)
    return item


def _restore_open(hint: type, item: Any) -> Any:
    kind = item.get("kind") if isinstance(item, dict) else None
    known = {option.__name__: option for option in _OPEN[hint]()}
    if kind not in known:
        raise ConfigError(
            f"a record of kind '{kind}' is none of {', '.join(known)}.{did_you_mean(str(kind), known)} Where it was made "
            "by code of your own, import that first."
        )
    return from_record(known[kind], item)
