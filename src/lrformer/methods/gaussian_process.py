"""What every method with a random-feature Gaussian-process head does besides its backbone."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core import make_generator
from lrformer.core.modes import evaluating
from lrformer.core.processes import gather_rows
from lrformer.heads import (
    DistanceReport,
    FittedGP,
    RandomFeatureGP,
    RandomFeatureGPConfig,
    distance_report,
)
from lrformer.methods.base import (
    BackboneFactory,
    BackboneMethod,
    Loader,
    collect_features,
    inputs,
)

_NUM_CALIBRATION_INPUTS = 1000
_NUM_REPORTED_INPUTS = 512


class GaussianProcessMethod(BackboneMethod):
    """A backbone with a `RandomFeatureGP` head: the precision is reset at every epoch, unless it is a moving average.

    `refresh_posterior` inverts what the epoch has summed, as SNGP's reference does; `fit_posterior`
    goes once more through the data with frozen weights, which is exact, and reports the distance
    that the variance carries in `distance`. With another head every hook does nothing.
    """

    def __init__(
        self, backbone: BackboneFactory, num_classes: int, config: RandomFeatureGPConfig
    ) -> None:
        super().__init__(backbone, num_classes, config)
        self.head = self.build_head(config)
        self.distance: DistanceReport | None = None

    def build_head(self, config: RandomFeatureGPConfig) -> nn.Module:
        """Return the head on the features of the backbone."""
        return RandomFeatureGP(self.num_features, self.num_classes, config)

    @property
    def gp(self) -> RandomFeatureGP | FittedGP | None:
        """The Gaussian-process head, if the method has one."""
        return self.head if isinstance(self.head, RandomFeatureGP | FittedGP) else None

    @property
    def predicts_by_logits(self) -> bool:
        """Whether the most probable class of a prediction is that of the largest logit of `forward`."""
        return self.gp is None or self.gp.config.keeps_class_of_mean

    @property
    def predicted_fields(self) -> frozenset[str]:
        """The fields of a `Predictive` that a prediction has."""
        has = super().predicted_fields
        if self.gp is None:
            return has
        is_sampled = self.gp.config.approximation == "monte_carlo"
        return has | {"variance"} | ({"samples"} if is_sampled else set())

    @property
    def needs_posterior(self) -> bool:
        """Whether the covariance is missing or stale."""
        return self.gp is not None and not self.gp.is_fitted

    @property
    def fits_temperature_by_variance(self) -> bool:
        """Whether the temperature that is fitted on validation may grow with the variance."""
        return self.gp is not None and self.gp.config.temperature_by_variance

    def prepare(self, loader: Loader) -> None:
        """Measure the scale of the features, where the head asks for it."""
        if self.gp is not None and self.gp.config.feature_scale == "calibrate":
            # In the mode of training: batch norm has no statistics of its own yet.
            self.gp.calibrate(collect_features(self, loader, limit=_NUM_CALIBRATION_INPUTS))

    def on_epoch_start(self) -> None:
        """Forget the precision of the last epoch; a moving average forgets by itself."""
        if self.gp is None:
            return
        if self.gp.config.momentum is None:
            self.gp.reset()
        else:
            # Steps that are replayed from a CUDA graph do not say so themselves.
            self.gp.posterior.mark_stale()

    def refresh_posterior(self) -> None:
        """Invert the precision that this epoch has summed, where training gathers one: not before a fit after it."""
        is_gathered = isinstance(self.gp, RandomFeatureGP) and self.gp.config.update_in_training
        if self.gp is not None and is_gathered:
            self.gp.refresh()

    def posterior_features(self, x: Tensor, generator: torch.Generator) -> Float[Tensor, "b e"]:
        """Return the features of training data as the posterior should see them."""
        del generator
        return self.features(x)

    def fit_posterior(self, loader: Loader) -> "GaussianProcessMethod":
        """Return self, with the precision summed over `loader` and inverted.

        With several processes each brings its own part of the data.
        """
        if isinstance(self.gp, FittedGP):
            self.gp.share_features()
        self.calibrate_posterior(loader, is_part=True)
        return self.sum_posterior(loader)

    @torch.no_grad()
    def calibrate_posterior(self, loader: Loader, *, is_part: bool = False) -> None:
        """Measure the scale of the features of a trained backbone, where the head is fitted to them afterwards.

        Args:
            is_part: whether `loader` gives every process a part of its own; otherwise all see the same data.
        """
        if isinstance(self.gp, FittedGP) and self.gp.config.feature_scale == "calibrate":
            with evaluating(self):
                # Only now do the features have the scale that they will keep.
                features = collect_features(
                    self, loader, limit=_NUM_CALIBRATION_INPUTS, is_part=is_part
                )
            self.gp.calibrate(features)

    @torch.no_grad()
    def sum_posterior(self, loader: Loader) -> "GaussianProcessMethod":
        """Return self, with the precision summed over `loader` on the scale that is set, and inverted."""
        if self.gp is None:
            return self
        device = next(self.parameters()).device
        # A fixed seed: a posterior is a function of the weights and the data.
        generator = make_generator(0, device)
        kept: list[Tensor] = []
        with evaluating(self), self.gp.posterior.frozen_pass():
            for x in inputs(loader, device):
                features = self.posterior_features(x, generator)
                self.gp.update(features)
                if sum(part.shape[0] for part in kept) < _NUM_REPORTED_INPUTS:
                    kept.append(features)
            self.gp.refresh()
            seen = gather_rows(kept, device)
            self.distance = distance_report(self.gp, seen, generator=generator)
        return self
