"""What a metric accepts: probabilities, labels and scores, checked once and turned into float64 on the CPU."""

from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lrformer.core import ConfigError, NotFiniteError

# Any leading shape is let through here, so that a wrong one meets our message and not a type checker's.
Array = Shaped[Tensor, "..."] | Shaped[np.ndarray, "..."]

HALF_PRECISION = (torch.float16, torch.bfloat16)
ROW_SUM_TOLERANCE = 1e-3
ROW_SUM_TOLERANCE_HALF = 2e-2


def as_tensor(values: Array) -> Tensor:
    """Return `values` as a tensor on the CPU, without its graph; lists of numbers are taken too."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    # A copy: a memory-mapped array is read-only, and torch cannot express that.
    array = np.array(values)
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"an array of {array.dtype} was given; metrics take numbers.")
    # torch knows one order of bytes, and no more than 64 bits.
    kind = np.float64 if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(kind, copy=False))


def as_probs(probs: Array, *, name: str = "probs") -> Float[Tensor, "b c"]:
    """Return class probabilities as float64, or raise if a row of them is no distribution."""
    tensor = as_tensor(probs)
    if tensor.ndim != 2 or tensor.shape[0] == 0 or tensor.shape[1] < 2:
        raise ConfigError(
            f"{name} has shape {tuple(tensor.shape)}; it must be (samples, classes) with at least "
            "one sample and two classes."
        )
    if not tensor.is_floating_point():
        raise ConfigError(f"{name} has dtype {tensor.dtype}; probabilities must be floating point.")
    tolerance = ROW_SUM_TOLERANCE_HALF if tensor.dtype in HALF_PRECISION else ROW_SUM_TOLERANCE
    tensor = tensor.double()
    bad = ~tensor.isfinite().all(dim=1)
    if bad.any():
        raise NotFiniteError(
            f"{name} is NaN or infinite in {int(bad.sum())} rows, the first is row "
            f"{int(bad.nonzero()[0])}; a model that diverged cannot be scored."
        )
    if tensor.min() < 0 or tensor.max() > 1 + tolerance:
        raise ConfigError(
            f"{name} ranges from {tensor.min():.4g} to {tensor.max():.4g}; probabilities lie in "
            "[0, 1]. Were these logits? Apply softmax first."
        )
    sums = tensor.sum(dim=1)
    bad = (sums - 1).abs() > tolerance
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ConfigError(
            f"{name} must sum to one in every row (within {tolerance:g}); {int(bad.sum())} rows do "
            f"not, row {row} sums to {sums[row]:.6g}."
        )
    return tensor


def as_labels(
    labels: Array, *, num_samples: int, num_classes: int, name: str = "labels"
) -> Int[Tensor, " b"]:
    """Return labels as int64, or raise if they do not fit the predictions."""
    tensor = as_tensor(labels)
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise ConfigError(f"{name} has dtype {tensor.dtype}; class labels must be integers.")
    if tuple(tensor.shape) != (num_samples,):
        raise ConfigError(
            f"{name} has shape {tuple(tensor.shape)}; it must be ({num_samples},), one label for "
            "each prediction."
        )
    tensor = tensor.long()
    if tensor.min() < 0 or tensor.max() >= num_classes:
        raise ConfigError(
            f"{name} ranges from {int(tensor.min())} to {int(tensor.max())}; with {num_classes} "
            f"classes it must lie in 0..{num_classes - 1}."
        )
    return tensor


def as_predictions(probs: Array, labels: Array) -> tuple[Float[Tensor, "b c"], Int[Tensor, " b"]]:
    """Return checked probabilities and the labels that belong to them."""
    checked = as_probs(probs)
    return checked, as_labels(labels, num_samples=len(checked), num_classes=checked.shape[1])


def as_scores(scores: Array, *, name: str) -> Float[Tensor, " b"]:
    """Return one score for each sample as float64; infinite is allowed, NaN has no rank and is not."""
    tensor = as_tensor(scores)
    if tensor.ndim != 1 or tensor.numel() == 0:
        raise ConfigError(
            f"{name} has shape {tuple(tensor.shape)}; it must be (samples,) with at least one sample."
        )
    tensor = tensor.double()
    if tensor.isnan().any():
        raise NotFiniteError(
            f"{name} is NaN for {int(tensor.isnan().sum())} samples; NaN has no rank."
        )
    return tensor


def as_num_bins(num_bins: int) -> int:
    """Return `num_bins`, or raise if nothing can be sorted into so few."""
    if not isinstance(num_bins, Integral) or num_bins < 1:
        raise ConfigError(f"num_bins ({num_bins}) must be a whole number, at least 1; 15 is usual.")
    return num_bins


def as_share(share: float, *, name: str) -> float:
    """Return `share`, or raise if it does not lie in (0, 1]."""
    if not 0 < share <= 1:
        raise ConfigError(f"{name} ({share}) must lie in (0, 1].")
    return share
