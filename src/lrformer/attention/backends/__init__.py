"""How a similarity is computed. Reached only through the attention files.

Every backend is a module with the same two functions: `dot_product` and `squared_distance`.
"""

from types import ModuleType

from lrformer.attention.backends import automatic, reference, sdpa
from lrformer.core import ConfigError

BACKENDS = ("auto", "reference", "sdpa", "triton")


def resolve_backend(name: str) -> ModuleType:
    """Return the backend called `name`; `auto` takes the fastest that can do the call."""
    if name == "auto":
        return automatic
    if name == "sdpa":
        return sdpa
    if name == "reference":
        return reference
    if name != "triton":
        raise ConfigError(f"backend ({name!r}) must be one of {', '.join(BACKENDS)}.")
    if not automatic.HAS_TRITON:
        raise ConfigError(
            "backend ('triton') needs the package triton, which comes with torch for CUDA; "
            "use backend='auto' or 'sdpa'."
        )
    from lrformer.attention.backends import triton

    return triton


__all__ = ["BACKENDS", "reference", "resolve_backend", "sdpa"]
