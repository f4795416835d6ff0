"""SNGP: soft spectral normalization under a Gaussian-process head (Liu et al. 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from lrformer.heads import RandomFeatureGPConfig
from lrformer.heads.random_features import Convention, FeatureScale
from lrformer.methods.base import BackboneFactory
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.methods.registry import METHODS
from lrformer.models.spectral import apply_spectral_norm


@dataclass(frozen=True, kw_only=True)
class SNGPConfig(RandomFeatureGPConfig):
    """Settings of `SNGP`; the defaults are the reference's on CIFAR-10 (7.5 on CIFAR-100).

    Attributes:
        spectral_bound: the norm above which a layer is scaled down; 6 on WRN-28-10.
        num_power_iterations: steps of power iteration at each training step.
        input_shape: shape of one input, where the backbone has convolutions and does not state it.
    """

    convention: Convention = "sngp"
    feature_scale: FeatureScale = "literal"
    mean_field_factor: float = 20.0
    spectral_bound: float = 6.0
    num_power_iterations: int = 1
    input_shape: tuple[int, ...] | None = None


@METHODS.register("sngp")
class SNGP(GaussianProcessMethod):
    """Distances kept by the backbone, read by the head; batch norm is left as it is.

    On a transformer (table 6, SNGP + Transformer): patch embedding, output projections and
    perceptrons are normalized; queries, keys and values are not.
    """

    config_class: ClassVar[type] = SNGPConfig

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: SNGPConfig) -> None:
        super().__init__(backbone, num_classes, config)
        apply_spectral_norm(
            self.backbone,
            bound=config.spectral_bound,
            num_iterations=config.num_power_iterations,
            input_shape=config.input_shape,
        )
