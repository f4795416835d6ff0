"""MCD-GP: MC Dropout under a Gaussian-process head (Liu et al. 2020, baselines of SNGP)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.core.modes import evaluating
from lrformer.heads import Predictive, RandomFeatureGPConfig
from lrformer.heads.random_features import Convention, FeatureScale
from lrformer.methods.base import BackboneFactory
from lrformer.methods.dropout import active_dropouts, chunks, repeat_batch, sampled_dropout
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.methods.registry import METHODS


@dataclass(frozen=True, kw_only=True)
class MCDGPConfig(RandomFeatureGPConfig):
    """Settings of `MCDGP`: SNGP's head, and how dropout is sampled.

    Attributes:
        num_dropout_samples: dropout masks in a prediction.
        samples_per_forward: how many of them share one forward pass; None means all.
        head_drop_rate: dropout on the features, for backbones that have no dropout layer.
    """

    convention: Convention = "sngp"
    feature_scale: FeatureScale = "literal"
    mean_field_factor: float = 20.0
    num_dropout_samples: int = 10
    samples_per_forward: int | None = None
    head_drop_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_dropout_samples < 2:
            raise ConfigError(
                f"num_dropout_samples ({self.num_dropout_samples}) must be at least 2."
            )
        if self.samples_per_forward is not None and self.samples_per_forward < 1:
            raise ConfigError(
                f"samples_per_forward ({self.samples_per_forward}) must be at least 1, or None."
            )
        if not 0 <= self.head_drop_rate < 1:
            raise ConfigError(
                f"head_drop_rate ({self.head_drop_rate}) must be at least 0 and below 1."
            )
        if self.approximation != "mean_field":
            raise ConfigError(
                f"approximation ('{self.approximation}') must be 'mean_field' in mcd_gp: the dropout "
                "masks are its Monte Carlo."
            )


@METHODS.register("mcd_gp")
class MCDGP(GaussianProcessMethod):
    """Every dropout mask gives one mean-field prediction of the head; they are averaged."""

    config_class: ClassVar[type] = MCDGPConfig

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: MCDGPConfig) -> None:
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

    def posterior_features(self, x: Tensor, generator: torch.Generator) -> Float[Tensor, "b e"]:
        """Return features with a dropout mask for each input: a prediction sees such features too."""
        with sampled_dropout(self, x.shape[0], generator):
            return self.features(x)

    @torch.no_grad()
    def predict(
        self, x: Shaped[Tensor, "b ..."], generator: torch.Generator | None = None
    ) -> Predictive:
        """Return the prediction with one sample for each mask; its variance is the head's mean variance."""
        sizes = chunks(self.config.num_dropout_samples, self.config.samples_per_forward)
        with evaluating(self):
            parts = [self._sample(x, size, generator) for size in sizes]
        samples = torch.cat([logits for logits, _ in parts])
        variance = torch.cat([variance for _, variance in parts]).mean(0)
        return Predictive(logits=samples.mean(0), variance=variance, samples=samples)

    def _sample(
        self, x: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> tuple[Float[Tensor, "s b c"], Float[Tensor, "s b ..."]]:
        with sampled_dropout(self, num_samples, generator):
            features = self.features(repeat_batch(x, num_samples))
        assert self.gp is not None
        predictive = self.gp.predict(features)
        assert predictive.variance is not None
        shape = (num_samples, -1)
        return predictive.logits.unflatten(0, shape), predictive.variance.unflatten(0, shape)
