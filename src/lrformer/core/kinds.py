"""Settings from a command line or a file, checked against the kinds that a dataclass declares."""

import math
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any

from lrformer.core.errors import ConfigError


def check_kinds(config_class: type, settings: Mapping[str, Any]) -> None:
    """Raise for a value of `settings` that is not of the kind of its field; names and parts are checked elsewhere."""
    hints = typing.get_type_hints(config_class)
    for name, value in settings.items():
        kind = _wrong_kind(value, hints[name])
        if kind is not None:
            raise ConfigError(f"{name} ({value!r}) must be {kind}.")


def _wrong_kind(value: object, hint: Any) -> str | None:
    """Return in words what `hint` wants where `value` is not that."""
    if isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint):
        rest = [part for part in typing.get_args(hint) if part is not types.NoneType]
        kind = None if value is None or len(rest) > 1 else _wrong_kind(value, rest[0])
        return None if kind is None else f"{kind}, or null"
    if hint is bool:
        return None if isinstance(value, bool) else "true or false"
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is float:
        if not is_number:
            return "a number"
        return None if math.isfinite(typing.cast("float", value)) else "a finite number"
    if hint is int:
        return None if is_number and isinstance(value, numbers.Integral) else "a whole number"
    if hint == tuple[int, ...]:
        is_list = isinstance(value, list | tuple)
        if is_list and not any(_wrong_kind(item, int) for item in value):
            return None
        return "a list of whole numbers, such as [1, 2]"
    return None
