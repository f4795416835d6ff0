"""Detectors of pytorch-ood (extra `ood`) on the features that a model gives."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.core import ConfigError, require_extra

DETECTORS = ("mahalanobis", "knn", "vim", "energy")


class FeatureDetectors:
    """Fitted detectors; larger scores are more uncertain, as everywhere in this package.

    Args:
        features: training features.
        labels: their classes; every class from 0 on must occur.
        weight: of the last linear layer; ViM and energy need it.
        bias: of the last linear layer; None is zero.
        names: which of `DETECTORS` to fit.
        num_neighbors: k of KNN; 50 is its paper's choice for CIFAR-10, 200 for CIFAR-100.
        vim_dim: dimension of ViM's principal subspace; None is half the width of the features.
    """

    def __init__(
        self,
        features: Float[Tensor, "n e"],
        labels: Int[Tensor, " n"],
        *,
        weight: Float[Tensor, "c e"] | None = None,
        bias: Float[Tensor, " c"] | None = None,
        names: Sequence[str] = DETECTORS,
        num_neighbors: int = 50,
        vim_dim: int | None = None,
    ) -> None:
        for name in names:
            if name not in DETECTORS:
                raise ConfigError(f"detector '{name}' must be one of {', '.join(DETECTORS)}.")
            if name in ("vim", "energy") and weight is None:
                raise ConfigError(
                    f"detector '{name}' needs the last linear layer; pass weight and bias, or leave "
                    "it out of names."
                )
        if "knn" in names and not 1 <= num_neighbors <= features.shape[0]:
            raise ConfigError(
                f"num_neighbors ({num_neighbors}) must be at least 1 and at most the "
                f"{features.shape[0]} training features."
            )
        package = require_extra("pytorch_ood.detector", extra="ood")
        features = features.detach().float().cpu()
        self.weight = None if weight is None else weight.detach().float().cpu()
        self.bias = None if bias is None else bias.detach().float().cpu()
        if self.weight is not None and self.bias is None:
            self.bias = torch.zeros(self.weight.shape[0])
        self.detectors: dict[str, Any] = {}
        for name in names:
            if name == "mahalanobis":
                detector = package.Mahalanobis(None)
            elif name == "knn":
                detector = package.KNN(None, k=num_neighbors)
            elif name == "vim":
                dim = features.shape[1] // 2 if vim_dim is None else vim_dim
                detector = package.ViM(None, d=dim, w=self.weight, b=self.bias)
            else:
                detector = package.EnergyBased(None)
            if name != "energy":
                detector.fit_features(features, labels.detach().cpu())
            self.detectors[name] = detector

    @torch.no_grad()
    def score(self, features: Float[Tensor, "b e"]) -> dict[str, Float[Tensor, " b"]]:
        """Return the score of every detector for each row of `features`."""
        features = features.detach().float().cpu()
        return {name: self._score(name, features) for name in self.detectors}

    def _score(self, name: str, features: Tensor) -> Tensor:
        detector = self.detectors[name]
        if name != "energy":
            return detector.predict_features(features).float()
        assert self.weight is not None
        assert self.bias is not None
        return detector.predict_logits(features @ self.weight.mT + self.bias)
