"""Transformers that know when they don't know.

Names are loaded when they are first used, so `import lrformer` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lrformer._version import __version__

if TYPE_CHECKING:
    from lrformer.evaluation.bounds import bounds
    from lrformer.evaluation.export import export
    from lrformer.heads import SCORES, Predictive
    from lrformer.interop import conversion_report, convert
    from lrformer.methods import create_method, list_methods
    from lrformer.models import create_model, list_models
    from lrformer.reports import plot_uncertainty
    from lrformer.training import fit_posterior, load, save

__all__ = [
    "SCORES",
    "Predictive",
    "__version__",
    "bounds",
    "conversion_report",
    "convert",
    "create_method",
    "create_model",
    "export",
    "fit_posterior",
    "list_methods",
    "list_models",
    "load",
    "plot_uncertainty",
    "save",
]

_HOMES = {
    "SCORES": "lrformer.heads",
    "Predictive": "lrformer.heads",
    "bounds": "lrformer.evaluation.bounds",
    "conversion_report": "lrformer.interop",
    "convert": "lrformer.interop",
    "create_method": "lrformer.methods",
    "create_model": "lrformer.models",
    "export": "lrformer.evaluation.export",
    "fit_posterior": "lrformer.training",
    "list_methods": "lrformer.methods",
    "list_models": "lrformer.models",
    "load": "lrformer.training",
    "plot_uncertainty": "lrformer.reports",
    "save": "lrformer.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lrformer' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
