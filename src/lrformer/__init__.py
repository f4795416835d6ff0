"""Transformers that know when they don't know.

Names are loaded when they are first used, so `import lrformer` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lrformer._version import __version__

if TYPE_CHECKING:
    from lrformer.models import create_model as create_model
    from lrformer.models import list_models as list_models

_HOMES = {
    "create_model": "lrformer.models",
    "list_models": "lrformer.models",
}

__all__ = [
    "__version__",
    "create_model",
    "list_models",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lrformer' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
