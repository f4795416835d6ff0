"""Whether code runs as it stands, or is traced or transformed, and what it keeps would mean nothing afterwards."""

import torch
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """Return whether vmap, torch.func or forward mode is at work, outside of compiled code."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_traced_or_transformed() -> bool:
    """Return whether the code is compiled, exported, traced or transformed at the moment."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed()
