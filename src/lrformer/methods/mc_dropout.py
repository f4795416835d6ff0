"""MC Dropout: the mean of the softmax over sampled dropout masks (Gal and Ghahramani 2016)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.core.full_precision import at_least_float32
from lrformer.core.modes import evaluating
from lrformer.heads import Predictive
from lrformer.methods.base import BackboneFactory, SoftmaxMethod
from lrformer.methods.dropout import active_dropouts, chunks, repeat_batch, sampled_dropout
from lrformer.methods.registry import METHODS


@dataclass(frozen=True, kw_only=True)
class MCDropoutConfig:
    """Settings of `MCDropout`.

    Attributes:
        num_samples: dropout masks in a prediction.
        samples_per_forward: how many of them share one forward pass; None means all, fewer need
            less memory.
        head_drop_rate: dropout on the features, for backbones that have no dropout layer.
    """

    num_samples: int = 10
    samples_per_forward: int | None = None
    head_drop_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.num_samples < 2:
            raise ConfigError(f"num_samples ({self.num_samples}) must be at least 2.")
        if self.samples_per_forward is not None and self.samples_per_forward < 1:
            raise ConfigError(
                f"samples_per_forward ({self.samples_per_forward}) must be at least 1, or None."
            )
        if not 0 <= self.head_drop_rate < 1:
            raise ConfigError(
                f"head_drop_rate ({self.head_drop_rate}) must be at least 0 and below 1."
            )


@METHODS.register("mc_dropout")
class MCDropout(SoftmaxMethod):
    """A softmax model whose dropout stays on: that of the backbone, and that of the features."""

    config_class: ClassVar[type] = MCDropoutConfig

    def __init__(
        self, backbone: BackboneFactory, num_classes: int, config: MCDropoutConfig
    ) -> None:
        super().__init__(backbone, num_classes, config)
        self.head_drop = nn.Dropout(config.head_drop_rate)
        active_dropouts(self)

    @property
    def predicts_by_logits(self) -> bool:
        """No: a mean over dropout masks decides."""
        return False

    @property
    def predicted_fields(self) -> frozenset[str]:
        """The fields of a `Predictive` that a prediction has."""
        return super().predicted_fields | {"samples"}

    def features(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b e"]:
        """Return what the head sees, after the dropout of the features."""
        return self.head_drop(self.backbone(x))

    @torch.no_grad()
    def predict(
        self, x: Shaped[Tensor, "b ..."], generator: torch.Generator | None = None
    ) -> Predictive:
        """Return the prediction with one sample for each dropout mask."""
        sizes = chunks(self.config.num_samples, self.config.samples_per_forward)
        with evaluating(self):
            samples = torch.cat([self._sample(x, size, generator) for size in sizes])
        return Predictive(logits=samples.mean(0), samples=samples)

    def _sample(
        self, x: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "s b c"]:
        with sampled_dropout(self, num_samples, generator):
            logits = self(repeat_batch(x, num_samples))
        return at_least_float32(logits).unflatten(0, (num_samples, -1))
