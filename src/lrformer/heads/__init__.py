"""Heads on anybody's features: what comes out is a `Predictive`."""

from lrformer.heads.distance import DistanceReport, FlatVarianceWarning, distance_report
from lrformer.heads.duq import DUQHead
from lrformer.heads.fitted_gp import FittedGP
from lrformer.heads.laplace_gp import (
    RandomFeatureGP,
    RandomFeatureGPConfig,
    RandomFeaturePosterior,
    mean_field_logits,
)
from lrformer.heads.laplace_posterior import LaplacePosterior
from lrformer.heads.linear import LinearHead
from lrformer.heads.predictive import SCORES, Predictive, concatenate
from lrformer.heads.random_features import RandomFourierFeatures
from lrformer.heads.variational_gp import VariationalGPHead

__all__ = [
    "SCORES",
    "DUQHead",
    "DistanceReport",
    "FittedGP",
    "FlatVarianceWarning",
    "LaplacePosterior",
    "LinearHead",
    "Predictive",
    "RandomFeatureGP",
    "RandomFeatureGPConfig",
    "RandomFeaturePosterior",
    "RandomFourierFeatures",
    "VariationalGPHead",
    "concatenate",
    "distance_report",
    "mean_field_logits",
]
