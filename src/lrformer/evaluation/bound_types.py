"""Which modules are exactly of a class that is known: a subclass may do anything in its `forward`."""

from typing import Any

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from lrformer.core.patches import COMPILED
from lrformer.models.block import DropPath

# A class, or the full name of one of another package's, which is not imported for it.
Kind = type[nn.Module] | str

# What hands on its input as it is, in evaluation mode.
SILENT: tuple[Kind, ...] = (
    nn.Identity,
    nn.Dropout,
    DropPath,
    "timm.layers.drop.DropPath",
    "timm.layers.patch_dropout.PatchDropout",
)


def full_name(module: nn.Module) -> str:
    """Return the name of a module's class as it was written: parametrizations put a subclass in its place."""
    kind = type_before_parametrizations(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def is_exactly(module: object, *kinds: Kind) -> bool:
    """Return whether `module` is of one of these classes, and not of a subclass."""
    if not isinstance(module, nn.Module):
        return False
    return type_before_parametrizations(module) in kinds or full_name(module) in kinds


def uncompiled(module: Any) -> Any:
    """Return the module inside what `torch.compile` made of it, which computes the same."""
    return module._orig_mod if is_exactly(module, COMPILED) else module


def is_nothing(part: nn.Module | None) -> bool:
    """Return whether there is no layer here, or one that does nothing."""
    return part is None or is_exactly(part, nn.Identity)


def part_beside(module: nn.Module, *names: str) -> str | None:
    """Return the name of a part that does something and is none of `names`; None where there is none."""
    for name, part in module.named_children():
        if name not in names and not is_exactly(part, *SILENT):
            return name
    return None
