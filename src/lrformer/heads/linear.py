"""The softmax head: one linear layer, no posterior."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core.full_precision import at_least_float32
from lrformer.heads.predictive import Predictive


class LinearHead(nn.Linear):
    """Logits `x W^T + b`; the same parameters and names as `nn.Linear`."""

    def __init__(self, in_features: int, num_classes: int, *, bias: bool = True) -> None:
        super().__init__(in_features, num_classes, bias=bias)

    def predict(
        self,
        features: Float[Tensor, "b e"],
        generator: torch.Generator | None = None,  # noqa: ARG002 - every head takes one
    ) -> Predictive:
        """Return the logits as a prediction without variance or samples."""
        return Predictive(logits=at_least_float32(self(features)))
