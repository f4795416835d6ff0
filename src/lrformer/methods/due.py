"""DUE: a variational Gaussian process on spectrally normalized features (van Amersfoort et al. 2021)."""

from collections.abc import Sized
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lrformer.core import ConfigError, make_generator
from lrformer.heads import VariationalGPHead
from lrformer.methods.base import BackboneFactory, BackboneMethod, Loader, collect_features
from lrformer.methods.registry import METHODS
from lrformer.models.spectral import apply_spectral_norm

_NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True, kw_only=True)
class DUEConfig:
    """Settings of `DUE`; the defaults are the reference's on CIFAR-10.

    Attributes:
        num_inducing: inducing points; None means one for each class.
        num_init_inputs: training inputs from whose features k-means chooses them.
        num_train_samples: samples of the expected likelihood in a training step (gpytorch's 10).
        num_samples: samples in a prediction.
        num_data: size of the training set; None reads it from the loader given to `prepare`.
        spectral_bound: coefficient of the spectral normalization; None leaves it out.
        num_power_iterations: steps of power iteration at each training step.
        input_shape: shape of one input, where the backbone has convolutions and does not state it.
        initial_posterior: "prior", as in the reference: every logit is noise at first, and the quickest way to a
            lower loss is to pull all features to the inducing points, where there is less of it. Batch norm at the
            end of a residual network prevents that; a transformer collapses. "draw" starts at one draw from the
            prior, with a tenth of its deviation: logits that depend on the features from the first step. None is
            "prior" where the last normalization of the backbone is a batch norm, and "draw" elsewhere.
        seed: of k-means and the draw.
    """

    num_inducing: int | None = None
    num_init_inputs: int = 1000
    num_train_samples: int = 10
    num_samples: int = 32
    num_data: int | None = None
    spectral_bound: float | None = 3.0
    num_power_iterations: int = 1
    input_shape: tuple[int, ...] | None = None
    initial_posterior: Literal["prior", "draw"] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.initial_posterior not in ("prior", "draw", None):
            raise ConfigError(
                f"initial_posterior ('{self.initial_posterior}') must be 'prior' or 'draw', or None to leave it "
                "to the backbone."
            )


@METHODS.register("due")
class DUE(BackboneMethod):
    """The evidence lower bound of a sparse Gaussian process, end to end with its backbone.

    Convolutions, linear layers and batch norms are softly normalized; on a transformer (table 6,
    DUE + Transformer) patch embedding, output projections and perceptrons.
    """

    config_class: ClassVar[type] = DUEConfig
    uses_criterion = False

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: DUEConfig) -> None:
        super().__init__(backbone, num_classes, config)
        self.head = VariationalGPHead(
            self.num_features,
            num_classes,
            num_inducing=config.num_inducing,
            num_train_samples=config.num_train_samples,
            num_samples=config.num_samples,
        )
        if config.spectral_bound is not None:
            apply_spectral_norm(
                self.backbone,
                bound=config.spectral_bound,
                num_iterations=config.num_power_iterations,
                input_shape=config.input_shape,
                batch_norm=True,
            )

    @property
    def needs_posterior(self) -> bool:
        """Whether the inducing points are missing: `prepare` sets them, training fits them."""
        return not self.head.is_initialized

    @property
    def predicted_fields(self) -> frozenset[str]:
        """The fields of a `Predictive` that a prediction has."""
        return super().predicted_fields | {"variance", "samples"}

    def prepare(self, loader: Loader) -> None:
        """Choose inducing points by k-means and the length-scale by the mean distance of features."""
        # In the mode of training: batch norm has no statistics of its own yet.
        features = collect_features(self, loader, limit=self.config.num_init_inputs)
        self.head.initialize(
            kmeans(features, self.head.num_inducing, seed=self.config.seed),
            float(torch.nn.functional.pdist(features.cpu()).mean()),
            self.config.num_data or _num_data(loader),
            generator=make_generator(self.config.seed) if self._starts_at_a_draw else None,
        )

    @property
    def _starts_at_a_draw(self) -> bool:
        if self.config.initial_posterior is not None:
            return self.config.initial_posterior == "draw"
        norms = [part for part in self.backbone.modules() if isinstance(part, _NORMS)]
        return not norms or not isinstance(norms[-1], _BatchNorm)

    def loss(self, x: Shaped[Tensor, "b ..."], y: Shaped[Tensor, "b ..."]) -> Float[Tensor, ""]:
        """Return the negative evidence lower bound per example."""
        return self.head.elbo_loss(self.features(x), y)


def kmeans(features: Float[Tensor, "b e"], num_clusters: int, *, seed: int) -> Float[Tensor, "m e"]:
    """Return the centers of `num_clusters` clusters of `features`, on their device."""
    if features.shape[0] < num_clusters:
        raise ConfigError(
            f"num_inducing ({num_clusters}) is larger than the {features.shape[0]} inputs that the "
            "loader gave; give more data or fewer inducing points."
        )
    from sklearn.cluster import KMeans

    fitted = KMeans(num_clusters, n_init="auto", random_state=seed).fit(features.cpu().numpy())
    return torch.from_numpy(fitted.cluster_centers_).to(features)


def _num_data(loader: Loader) -> int:
    """Return the number of training examples that a loader goes through in an epoch."""
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, Sized):
        return len(dataset)
    return sum((batch if isinstance(batch, Tensor) else batch[0]).shape[0] for batch in loader)
