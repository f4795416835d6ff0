"""How a similarity is computed. Reached only through the attention files.

Every backend is a module with the same two functions: `dot_product` and `squared_distance`.
"""

from types import ModuleType

from lrformer.attention.backends import reference, sdpa
from lrformer.core import ConfigError

BACKENDS = ("auto", "reference", "sdpa")


def resolve_backend(name: str) -> ModuleType:
    """Return the backend called `name`; `auto` is the fused one, which runs on every device."""
    if name in ("auto", "sdpa"):
        return sdpa
    if name == "reference":
        return reference
    raise ConfigError(f"backend ({name!r}) must be one of {', '.join(BACKENDS)}.")


__all__ = ["BACKENDS", "reference", "resolve_backend", "sdpa"]
