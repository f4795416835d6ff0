"""Whether code runs as it stands, or is traced or transformed, and what it keeps would mean nothing afterwards."""

from typing import Any

import torch


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` is at work."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return functorch.peek_interpreter_stack() is not None


def is_traced_or_transformed() -> bool:
    """Return whether the code is compiled, exported or transformed at the moment."""
    return torch.compiler.is_compiling() or is_transformed()
