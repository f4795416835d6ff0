"""What makes a module compute more than its class says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.modules import module

if TYPE_CHECKING:
    from torch import nn


# `torch.compile` puts one into its wrapper, which computes what is inside.
COMPILED = "torch._dynamo.eval_frame.OptimizedModule"


def patches_of(model: nn.Module) -> list[str]:
    """Return every part of `model` with a forward hook or a method of its own, in words.

    Its class, its settings and its weights are then not all there is to it.
    """
    found = ["every module has a global forward hook"] if _has_global_hooks() else []
    for name, part in model.named_modules():
        kinds = ["a forward pre-hook"] if part._forward_pre_hooks else []
        kinds += ["a forward hook"] if part._forward_hooks else []
        kinds += [f"a {method} that was put into it" for method in _own_methods(part)]
        where = f"'{name}'" if name else "the model"
        found += [f"{where} has {kind}" for kind in kinds]
    return found


def _own_methods(part: nn.Module) -> list[str]:
    """Return the names of the methods that stand in an instance in place of those of its class."""
    is_compiled = f"{type(part).__module__}.{type(part).__qualname__}" == COMPILED
    return [
        name
        for name, value in vars(part).items()
        if callable(value)
        and callable(getattr(type(part), name, None))
        and not (is_compiled and name == "forward")
    ]


def _has_global_hooks() -> bool:
    return bool(module._global_forward_hooks or module._global_forward_pre_hooks)
