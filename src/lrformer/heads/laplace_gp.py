"""The Gaussian-process head of SNGP and LRFormer: random features, learned weights, Laplace posterior."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.core.full_precision import without_autocast
from lrformer.core.processes import take_from_first
from lrformer.heads.laplace_posterior import LaplacePosterior, Likelihood
from lrformer.heads.predictive import Predictive
from lrformer.heads.random_features import Convention, FeatureScale, RandomFourierFeatures

POSTERIOR_SETTINGS = frozenset(
    {
        *("ridge", "momentum", "likelihood", "update_in_training"),
        *("approximation", "mean_field_factor", "num_samples", "temperature_by_variance"),
    }
)


@dataclass(frozen=True, kw_only=True)
class RandomFeatureGPConfig:
    """Settings of `RandomFeatureGP`; the defaults are the paper's, on layer-normalized features.

    Attributes:
        num_random_features: number of random features.
        convention: how features are computed, see `RandomFourierFeatures`.
        length_scale: length-scale of the RBF kernel.
        feature_scale: the scale on which it is measured, see `RandomFourierFeatures`.
        ridge: prior precision of the weights.
        momentum: None sums the precision of an epoch exactly; a number is that of a moving average over epochs.
        likelihood: "gaussian" (one covariance) or "softmax" (one for each class).
        approximation: "mean_field" or "monte_carlo".
        mean_field_factor: factor on the variance; pi/8 is the probit value, SNGP's reference uses 20
            on CIFAR-10 and 7.5 on CIFAR-100.
        num_samples: draws of the Monte Carlo approximation.
        temperature_by_variance: whether the temperature that training fits on validation may grow with the variance,
            see `fit_temperature`: what `mean_field_factor` does, by as much as the likelihood asks for.
        output_bias: whether the logits have a learned bias.
        update_in_training: whether a forward pass in training mode adds to the precision.
    """

    num_random_features: int = 1024
    convention: Convention = "paper"
    length_scale: float = 2.0
    feature_scale: FeatureScale = "layer_norm"
    ridge: float = 1.0
    momentum: float | None = None
    likelihood: Likelihood = "gaussian"
    approximation: Literal["mean_field", "monte_carlo"] = "mean_field"
    mean_field_factor: float = math.pi / 8
    num_samples: int = 10
    temperature_by_variance: bool = False
    output_bias: bool = True
    update_in_training: bool = True

    def __post_init__(self) -> None:
        if self.approximation not in ("mean_field", "monte_carlo"):
            raise ConfigError(
                f"approximation ('{self.approximation}') must be 'mean_field' or 'monte_carlo'."
            )
        if not 0 <= self.mean_field_factor < math.inf:
            raise ConfigError(
                f"mean_field_factor ({self.mean_field_factor}) must not be negative, and finite."
            )
        if self.num_samples < 1:
            raise ConfigError(f"num_samples ({self.num_samples}) must be at least 1.")

    @property
    def keeps_class_of_mean(self) -> bool:
        """Whether the most probable class is that of the mean logits: nothing is sampled, one variance for all classes."""
        return self.likelihood == "gaussian" and self.approximation == "mean_field"

    @property
    def settings_after_training(self) -> frozenset[str]:
        """Return the settings that do not change what is learned: those of the posterior, and how it is read."""
        return POSTERIOR_SETTINGS


class RandomFeaturePosterior(nn.Module):
    """Random features with a Laplace posterior over weights that somebody else has learned.

    It gives the variance of logits whose mean comes from elsewhere, such as a trained classifier.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        config: RandomFeatureGPConfig | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        config = config or RandomFeatureGPConfig()
        self.config = config
        self.random_features = RandomFourierFeatures(
            in_features,
            config.num_random_features,
            convention=config.convention,
            length_scale=config.length_scale,
            feature_scale=config.feature_scale,
            generator=generator,
        )
        self.posterior = LaplacePosterior(
            config.num_random_features,
            num_classes,
            ridge=config.ridge,
            momentum=config.momentum,
            likelihood=config.likelihood,
        )

    @property
    def is_fitted(self) -> bool:
        """Whether a prediction may be made."""
        return self.posterior.is_fitted

    def calibrate(self, features: Float[Tensor, "b e"]) -> None:
        """Set the scale of the features from training features (`feature_scale="calibrate"`)."""
        self.random_features.calibrate(features)
        self.posterior.reset()

    def share_features(self) -> None:
        """Take the random features of the first process; a posterior is summed in one basis."""
        features = self.random_features
        take_from_first(features.weight, features.bias)

    def stretch(self, factor: float) -> None:
        """Make the length-scale `factor` times as long; the posterior has to be fitted anew."""
        self.random_features.input_scale.mul_(factor)
        self.posterior.reset()

    def reset(self) -> None:
        """Forget the precision; call at the start of an epoch, unless there is a `momentum`."""
        self.posterior.reset()

    def refresh(self) -> None:
        """Recompute the covariance from the precision; call before an evaluation."""
        self.posterior.refresh()

    def variance(
        self, features: Float[Tensor, "b e"]
    ) -> Float[Tensor, " b"] | Float[Tensor, "b c"]:
        """Return the posterior variance of the logits."""
        return _variance(self.posterior.whiten(self.random_features(features)))

    def predict_around(
        self,
        mean: Float[Tensor, "b c"],
        phi: Float[Tensor, "b f"],
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """Return the prediction with logits of this `mean`, by mean field or Monte Carlo as configured.

        Monte Carlo draws functions, not points: the same draw of the weights serves the whole batch,
        so a seeded prediction does not depend on the other inputs in the batch.
        """
        whitened = self.posterior.whiten(phi)
        variance = _variance(whitened)
        if self.config.approximation == "mean_field":
            logits = mean_field_logits(mean, variance, factor=self.config.mean_field_factor)
            return Predictive(logits=logits, variance=variance)
        with without_autocast(phi):
            samples = mean + _draws(whitened, mean.shape[-1], self.config.num_samples, generator)
        return Predictive(logits=mean, variance=variance, samples=samples)


class RandomFeatureGP(RandomFeaturePosterior):
    """Logits `Phi(x) beta` with a Laplace posterior over beta; a plain module on `(b, e)` features.

    In anybody's training loop::

        head.reset()                       # at the start of an epoch; with `momentum` never
        loss = cross_entropy(head(h), y)   # in training mode the forward pass also adds to the precision
        head.refresh()                     # before an evaluation
        predictive = head.eval().predict(h)

    A forward pass in training mode makes the posterior stale: predicting before `refresh` raises.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        config: RandomFeatureGPConfig | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, config, generator=generator)
        num_random_features = self.config.num_random_features
        self.output = nn.Linear(num_random_features, num_classes, bias=self.config.output_bias)
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw beta so that the logits of an untrained head have the scale of a linear layer's."""
        # |Phi| is 1 in the paper's convention and sqrt(M/2) in SNGP's.
        length = self.random_features.amplitude * math.sqrt(self.config.num_random_features / 2)
        self.output.weight.normal_(0, 0.5 / length, generator=generator)
        if self.output.bias is not None:
            self.output.bias.zero_()

    def forward(self, features: Float[Tensor, "b e"]) -> Float[Tensor, "b c"]:
        """Return the posterior mean of the logits; in training mode also add to the precision."""
        phi = self.random_features(features)
        logits = self._mean(phi)
        if self.training:
            self.posterior.mark_stale()
            if self.config.update_in_training:
                self.posterior.update(phi, logits)
        return logits

    def _mean(self, phi: Tensor) -> Tensor:
        with without_autocast(phi):
            bias = self.output.bias
            bias = bias.to(phi.dtype) if bias is not None else None
            return nn.functional.linear(phi, self.output.weight.to(phi.dtype), bias)

    @torch.no_grad()
    def update(self, features: Float[Tensor, "b e"]) -> None:
        """Add a batch of training features to the precision, whatever the mode."""
        phi = self.random_features(features)
        self.posterior.update(phi, self._mean(phi))

    def predict(
        self, features: Float[Tensor, "b e"], generator: torch.Generator | None = None
    ) -> Predictive:
        """Return the prediction with its variance, by mean field or Monte Carlo as configured."""
        phi = self.random_features(features)
        return self.predict_around(self._mean(phi), phi, generator)


def mean_field_logits(
    mean: Float[Tensor, "b c"],
    variance: Float[Tensor, " b"] | Float[Tensor, "b c"],
    *,
    factor: float,
) -> Float[Tensor, "b c"]:
    """Return logits shrunk by their own variance; `factor=0` is the plain softmax head."""
    variance = variance.unsqueeze(-1) if variance.ndim == 1 else variance
    return mean / (1 + factor * variance).sqrt()


def _variance(whitened: Tensor) -> Tensor:
    """Return the squared lengths: `(b,)` for one covariance, `(b, c)` for one for each class."""
    variance = whitened.square().sum(-1)
    return variance[0] if variance.shape[0] == 1 else variance.mT


def _draws(
    whitened: Tensor, num_classes: int, num_samples: int, generator: torch.Generator | None
) -> Tensor:
    """Return `num_samples` draws of the deviation of the logits from their mean."""
    device = generator.device if generator is not None else whitened.device
    shape = (num_samples, whitened.shape[-1], num_classes)
    noise = torch.randn(shape, generator=generator, device=device).to(whitened)
    if whitened.shape[0] == 1:
        return whitened[0] @ noise
    return torch.einsum("cbf,sfc->sbc", whitened, noise)
