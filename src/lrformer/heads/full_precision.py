"""Where a head leaves mixed precision: posteriors and kernels are computed in float32 or better."""

from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which operations on the device of `tensor` are not cast down."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def at_least_float32(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `tensor` in float32 if it is narrower, else unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
