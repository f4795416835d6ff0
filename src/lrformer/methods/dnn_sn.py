"""DNN-SN: soft spectral normalization under a linear head (Liu et al. 2020, ablation of SNGP)."""

from dataclasses import dataclass
from typing import ClassVar

from lrformer.methods.base import BackboneFactory, SoftmaxMethod
from lrformer.methods.registry import METHODS
from lrformer.models.spectral import apply_spectral_norm


@dataclass(frozen=True, kw_only=True)
class DNNSNConfig:
    """Settings of `DNNSN`.

    Attributes:
        spectral_bound: the norm above which a layer is scaled down; 6 on WRN-28-10 in the reference.
        num_power_iterations: steps of power iteration at each training step.
        input_shape: shape of one input, where the backbone has convolutions and does not state it.
    """

    spectral_bound: float = 6.0
    num_power_iterations: int = 1
    input_shape: tuple[int, ...] | None = None


@METHODS.register("dnn_sn")
class DNNSN(SoftmaxMethod):
    """A softmax model whose convolutions and linear layers are softly normalized.

    On a transformer: patch embedding, output projections and perceptrons; not queries, keys, values.
    """

    config_class: ClassVar[type] = DNNSNConfig

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: DNNSNConfig) -> None:
        super().__init__(backbone, num_classes, config)
        apply_spectral_norm(
            self.backbone,
            bound=config.spectral_bound,
            num_iterations=config.num_power_iterations,
            input_shape=config.input_shape,
        )
