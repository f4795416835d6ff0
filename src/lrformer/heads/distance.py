"""Whether a fitted Gaussian-process head really carries distance: far against near variance."""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.heads.laplace_gp import RandomFeaturePosterior
from lrformer.heads.random_features import median_distance

FLAT_RATIO = 2.0
FAR_FACTOR = 10.0


class FlatVarianceWarning(UserWarning):
    """A posterior whose variance far from the data is hardly larger than on it."""


@dataclass(frozen=True, kw_only=True)
class DistanceReport:
    """How the variance of a head changes between its data and far away.

    Attributes:
        near: mean variance on the features.
        far: mean variance in random directions, ten median distances from their mean.
        prior: mean variance there before any data was seen.
        effective_rank: how many random features the data has determined.
    """

    near: float
    far: float
    prior: float
    effective_rank: float

    @property
    def ratio(self) -> float:
        """Far variance over near variance; 1 means that the variance carries no distance."""
        return self.far / max(self.near, 1e-12)


@torch.no_grad()
def distance_report(
    head: RandomFeaturePosterior,
    features: Float[Tensor, "b e"],
    *,
    generator: torch.Generator | None = None,
) -> DistanceReport:
    """Return the far and near variance of a fitted `head`, and warn when their ratio is under 2."""
    features = features.float()
    device = generator.device if generator is not None else features.device
    directions = torch.randn(features.shape, generator=generator, device=device).to(features)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    far_features = features.mean(0) + FAR_FACTOR * median_distance(features) * directions
    report = DistanceReport(
        near=float(head.variance(features).mean()),
        far=float(head.variance(far_features).mean()),
        prior=float(head.random_features(far_features).square().sum(-1).mean()),
        effective_rank=head.posterior.effective_rank,
    )
    if report.ratio < FLAT_RATIO:
        warnings.warn(
            f"the variance carries no distance: {report.far:.3g} far from the data against "
            f"{report.near:.3g} on it (ratio {report.ratio:.2f} < {FLAT_RATIO:g}, effective rank "
            f"{report.effective_rank:.0f} of {head.posterior.num_features}). The length-scale does "
            f"not fit the features: {_advice(head.config.feature_scale)}, or use more random features.",
            FlatVarianceWarning,
            stacklevel=2,
        )
    return report


def _advice(feature_scale: str) -> str:
    if feature_scale == "literal":
        return "set feature_scale to 'calibrate' or 'layer_norm'"
    return "set another length_scale"
