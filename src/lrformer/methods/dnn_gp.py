"""DNN-GP: SNGP's head without spectral normalization (Liu et al. 2020, ablation of SNGP)."""

from dataclasses import dataclass
from typing import ClassVar

from lrformer.heads import RandomFeatureGPConfig
from lrformer.heads.random_features import Convention, FeatureScale
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.methods.registry import METHODS


@dataclass(frozen=True, kw_only=True)
class DNNGPConfig(RandomFeatureGPConfig):
    """Settings of `DNNGP`: the head of SNGP's reference on CIFAR-10."""

    convention: Convention = "sngp"
    feature_scale: FeatureScale = "literal"
    mean_field_factor: float = 20.0


@METHODS.register("dnn_gp")
class DNNGP(GaussianProcessMethod):
    """A backbone left as it is, under a Gaussian-process head."""

    config_class: ClassVar[type] = DNNGPConfig
