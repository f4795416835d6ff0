"""Class by class: which classes are answered rightly, and what each is taken for."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Int
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.metrics.bootstrap import DEFAULT_LEVEL
from lrformer.metrics.inputs import Array, as_predictions


@dataclass(frozen=True, kw_only=True)
class Proportion:
    """A share of `total` samples and the interval that holds it at a level of confidence."""

    value: float
    low: float
    high: float
    total: int


def confusion_matrix(probs: Array, labels: Array) -> Int[Tensor, "c c"]:
    """Return how many samples of each class (row) were taken for each class (column); the first class wins a tie."""
    checked, truth = as_predictions(probs, labels)
    num_classes = checked.shape[1]
    pairs = truth * num_classes + checked.argmax(dim=1)
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def wilson_interval(num_right: int, total: int, *, level: float = DEFAULT_LEVEL) -> Proportion:
    """Return the share `num_right / total` with Wilson's interval.

    The bootstrap gives a class that is always right an interval of no width, however few its samples are.
    """
    if not 0 <= num_right <= total or total < 1:
        raise ConfigError(
            f"num_right ({num_right}) must be from 0 to total ({total}), and total at least 1."
        )
    if not 0 < level < 1:
        raise ConfigError(f"level ({level}) must lie strictly between 0 and 1; 0.95 is usual.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, scale = num_right / total, 1 + z**2 / total
    center = (share + z**2 / (2 * total)) / scale
    half = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / scale
    # Rounding must not put the ends beyond what they hold.
    low, high = min(max(center - half, 0.0), share), max(min(center + half, 1.0), share)
    return Proportion(value=share, low=low, high=high, total=total)
