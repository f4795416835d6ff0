"""Training and evaluation mode: for the time of a block, module by module."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run the block with every part of `module` in evaluation mode, and give each its own mode back.

    Parts that somebody froze, such as batch norms, stay in evaluation mode after it.
    """
    modes = [(part, part.training) for part in module.modules()]
    if not any(is_training for _, is_training in modes):
        yield
        return
    module.eval()
    try:
        yield
    finally:
        # Through `train`, which some parts override; it reaches their children, which come after them here.
        for part, is_training in modes:
            if part.training != is_training:
                part.train(is_training)
