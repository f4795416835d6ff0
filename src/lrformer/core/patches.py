"""What makes a module compute more than its class says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


# `torch.compile` puts one into its wrapper, which computes what is inside.
COMPILED = "torch._dynamo.eval_frame.OptimizedModule"


def patches_of(model: nn.Module) -> list[str]:
    """Return every part of `model` with a forward hook or a `forward` of its own, in words.

    Its class, its settings and its weights are then not all there is to it.
    """
    found = []
    for name, part in model.named_modules():
        is_compiled = f"{type(part).__module__}.{type(part).__qualname__}" == COMPILED
        kinds = {
            "a forward pre-hook": bool(part._forward_pre_hooks),
            "a forward hook": bool(part._forward_hooks),
            "a forward that was put into it": "forward" in vars(part) and not is_compiled,
        }
        where = f"'{name}'" if name else "the model"
        found += [f"{where} has {kind}" for kind, is_there in kinds.items() if is_there]
    return found
