"""The errors that a user can meet. Each message states the name, the value, the rule and a way out."""

import importlib
from types import ModuleType


class LRFormerError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(LRFormerError, ValueError):
    """An argument, a name or a combination of settings that cannot work; raised before any compute."""


class NotFiniteError(ConfigError):
    """What a model gives is NaN or infinite, so that nothing can be measured by it; it is the model that has to be made anew."""


class UnsupportedModelError(LRFormerError, TypeError):
    """A model that this package cannot convert or read; the message says what is supported."""


class NotFittedError(LRFormerError, RuntimeError):
    """A posterior that was never fitted, or that is older than the weights it belongs to."""


class MissingExtraError(LRFormerError, ImportError):
    """An optional dependency that is not installed; the message gives the install command."""


def require_extra(module: str, *, extra: str) -> ModuleType:
    """Return the imported optional `module`, or raise with the command that installs its `extra`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module} is not installed; it comes with the extra '{extra}': "
            f"pip install 'lrformer[{extra}]'."
        ) from error
