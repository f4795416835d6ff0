"""A linear head with a Gaussian process beside it that is fitted after training, on frozen features."""

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core.full_precision import at_least_float32
from lrformer.heads.laplace_gp import RandomFeatureGPConfig, RandomFeaturePosterior
from lrformer.heads.linear import LinearHead
from lrformer.heads.predictive import Predictive


class FittedGP(RandomFeaturePosterior):
    """Trains as a `LinearHead`; predicts its logits with the variance of a posterior on the same features.

    The process takes no part in training: it adds a variance. Under the mean-field approximation it does not
    change which class is most probable, unless every class has a variance of its own (`likelihood="softmax"`).
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
        self.linear = LinearHead(in_features, num_classes)

    def forward(self, features: Float[Tensor, "b e"]) -> Float[Tensor, "b c"]:
        """Return the logits; in training mode the posterior becomes stale."""
        if self.training:
            self.posterior.mark_stale()
        return self.linear(features)

    @torch.no_grad()
    def update(self, features: Float[Tensor, "b e"]) -> None:
        """Add a batch of training features to the precision, whatever the mode."""
        self.posterior.update(self.random_features(features), self.linear(features))

    def predict(
        self, features: Float[Tensor, "b e"], generator: torch.Generator | None = None
    ) -> Predictive:
        """Return the logits with their variance, by mean field or Monte Carlo as configured."""
        logits = at_least_float32(self.linear(features))
        return self.predict_around(logits, self.random_features(features), generator)
