"""Deterministic: a backbone, a linear head, cross-entropy; the baseline of every table."""

from dataclasses import dataclass
from typing import ClassVar

from lrformer.methods.base import SoftmaxMethod
from lrformer.methods.registry import METHODS


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig:
    """The deterministic model has no settings of its own."""


@METHODS.register("deterministic")
class Deterministic(SoftmaxMethod):
    """Softmax of a linear head; uncertainty is what the softmax says."""

    config_class: ClassVar[type] = DeterministicConfig
