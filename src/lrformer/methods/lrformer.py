"""LRFormer: a backbone with Lipschitz-regularized attention under a linear or a Gaussian-process head."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from torch import nn

from lrformer.attention import LRSA
from lrformer.core import ConfigError
from lrformer.heads import FittedGP, LinearHead, RandomFeatureGPConfig
from lrformer.methods.base import BackboneFactory
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.methods.registry import METHODS
from lrformer.models.spectral import apply_spectral_norm


@dataclass(frozen=True, kw_only=True)
class LRFormerConfig(RandomFeatureGPConfig):
    """Settings of `LRFormer`; those of the Gaussian process do not act with `head="linear"`.

    Attributes:
        head: "gp" (the paper's distance-aware output layer, trained with the backbone), "linear", or
            "fitted": trained as "linear", with a Gaussian process fitted to the features afterwards.
        choose_length_scale: whether training ends with the choice of the length-scale of a fitted GP, with which
            its variance finds outliers made of validation images best; `length_scale` is then where the search
            is centred. Features of a trained network lie in clusters, one a class, and the median distance is
            that between clusters, and so long a length-scale sees little of what lies beside them.
        spectral_bound: the norm above which a layer outside the attention's queries, keys and values is scaled
            down, as SNGP does; None, which is the paper's, leaves the layers alone.
    """

    head: Literal["gp", "linear", "fitted"] = "gp"
    choose_length_scale: bool = False
    spectral_bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head not in ("gp", "linear", "fitted"):
            raise ConfigError(f"head ('{self.head}') must be 'gp', 'linear' or 'fitted'.")
        if self.choose_length_scale and (
            self.head != "fitted" or self.feature_scale != "calibrate"
        ):
            raise ConfigError(
                f"choose_length_scale needs head='fitted' (it is '{self.head}') and "
                f"feature_scale='calibrate' (it is '{self.feature_scale}')."
            )
        if self.temperature_by_variance and self.head == "linear":
            raise ConfigError(
                "temperature_by_variance needs a variance, which head='linear' does not have; take 'gp' or 'fitted'."
            )
        if self.spectral_bound is not None and not self.spectral_bound > 0:
            raise ConfigError(
                f"spectral_bound ({self.spectral_bound}) must be positive, or None for no bound."
            )

    @property
    def settings_after_training(self) -> frozenset[str]:
        """Return the settings that do not change what is learned; with a fitted process all of its own."""
        if self.head != "fitted":
            return super().settings_after_training
        return frozenset(field.name for field in fields(self)) - {"head", "spectral_bound"}


@METHODS.register("lrformer")
class LRFormer(GaussianProcessMethod):
    """The paper's model. The backbone is the caller's, and must have LRSA attention."""

    config_class: ClassVar[type] = LRFormerConfig

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: LRFormerConfig) -> None:
        super().__init__(backbone, num_classes, config)
        if not any(isinstance(module, LRSA) for module in self.backbone.modules()):
            raise ConfigError(
                f"{type(self.backbone).__name__} has no LRSA attention, so it is no LRFormer; use "
                "create_model('lrformer_...') or convert(model, attention='lrsa'), or give this model "
                "another method, such as 'deterministic' (on the command line --method deterministic)."
            )
        if config.spectral_bound is not None:
            apply_spectral_norm(self.backbone, bound=config.spectral_bound)

    def build_head(self, config: RandomFeatureGPConfig) -> nn.Module:
        """Return the head that the config names."""
        assert isinstance(config, LRFormerConfig)
        if config.head == "linear":
            return LinearHead(self.num_features, self.num_classes)
        if config.head == "fitted":
            return FittedGP(self.num_features, self.num_classes, config)
        return super().build_head(config)
