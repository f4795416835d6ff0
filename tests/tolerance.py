"""The one table of tolerances, keyed by dtype: relative to the largest entry of the reference."""

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
GRADIENT_TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest deviation over the largest entry; NaN counts as infinite."""
    deviation = (actual.double() - expected.double()).abs().max()
    scale = expected.double().abs().max().clamp_min(1e-30)
    error = (deviation / scale).item()
    return error if error == error else float("inf")


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    error = relative_error(actual, expected)
    assert error <= tolerance, f"relative error {error:.2e} is above {tolerance:.0e}"
