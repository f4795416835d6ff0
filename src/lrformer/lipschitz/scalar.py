"""Scalars that are floats in a report and 0-dim tensors in training, under one set of operations."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Scalar = float | Float[Tensor, ""]


def root(value: Scalar) -> Scalar:
    """Return the square root of a float or of a tensor."""
    return value.sqrt() if isinstance(value, Tensor) else math.sqrt(value)


def smallest(first: Scalar, second: Scalar) -> Scalar:
    """Return the smaller of two scalars; the gradient follows the branch that was taken."""
    return _pick(first, second, torch.minimum, min)


def largest(first: Scalar, second: Scalar) -> Scalar:
    """Return the larger of two scalars; the gradient follows the branch that was taken."""
    return _pick(first, second, torch.maximum, max)


def plain(value: Scalar) -> float:
    """Return the value as a float, outside any graph: for checks and branches."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def _pick(first: Scalar, second: Scalar, on_tensors, on_floats) -> Scalar:
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        like = first if isinstance(first, Tensor) else second
        assert isinstance(like, Tensor)
        pair = (torch.as_tensor(s, dtype=like.dtype, device=like.device) for s in (first, second))
        return on_tensors(*pair)
    return on_floats(first, second)
