"""Where a module leaves mixed precision: posteriors, kernels and temperatures are kept in float32 or better."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor, nn


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which operations on the device of `tensor` are not cast down."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def at_least_float32(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `tensor` in float32 if it is narrower, else unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def apply_without_rounding(
    module: nn.Module,
    names: Sequence[str],
    apply: Callable[[], object],
    *,
    least: torch.dtype = torch.float64,
) -> None:
    """Move or cast `module` by `apply`; the named buffers follow to the device, and never to fewer bits than `least`.

    `.half()` and `.bfloat16()` on a model must not round away what a posterior was computed from. What has fewer bits
    than `least` keeps those that it has.
    """
    kept = {name: getattr(module, name) for name in names}
    apply()
    for name, before in kept.items():
        after = getattr(module, name)
        kept_dtype = min(before.dtype, least, key=lambda dtype: torch.finfo(dtype).bits)
        if torch.finfo(after.dtype).bits < torch.finfo(kept_dtype).bits:
            setattr(module, name, before.to(after.device, kept_dtype))
