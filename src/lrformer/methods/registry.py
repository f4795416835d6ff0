"""Methods by name, and how one is made."""

import dataclasses
from typing import Any

from torch import nn

from lrformer.core import ConfigError, Registry
from lrformer.core.kinds import check_kinds
from lrformer.core.registry import did_you_mean
from lrformer.methods.base import BackboneFactory, Method

METHODS: Registry[type[Method]] = Registry("method")


def list_methods() -> list[str]:
    """Return the names that `create_method` accepts."""
    return METHODS.names()


def create_method(
    name: str, backbone: BackboneFactory, num_classes: int, **overrides: Any
) -> Method:
    """Return the method called `name` on the backbone that `backbone()` makes.

    The backbone is any module that maps inputs to `(b, num_features)` features and states
    `num_features`: ours, timm's with `num_classes=0`, a `WideResNet`. `overrides` are fields of the
    method's config.

    >>> backbone = lambda: create_model("lrformer_digits", num_classes=0)
    >>> method = create_method("sngp", backbone, num_classes=10, mean_field_factor=7.5)
    """
    method_class = METHODS[name]
    known = [field.name for field in dataclasses.fields(method_class.config_class)]
    for override in overrides:
        if override not in known:
            raise ConfigError(
                f"method '{name}' has no setting '{override}'.{did_you_mean(override, known)} "
                f"Known: {', '.join(known) or 'none'}."
            )
    check_kinds(method_class.config_class, overrides)
    if isinstance(backbone, nn.Module) or not callable(backbone):
        raise ConfigError(
            f"backbone ({type(backbone).__name__}) must be a function that builds one, such as "
            f"lambda: create_model('lrformer_digits', num_classes=0)."
        )
    if num_classes < 2:
        raise ConfigError(f"num_classes ({num_classes}) must be at least 2.")
    return method_class(backbone, num_classes, method_class.config_class(**overrides))
