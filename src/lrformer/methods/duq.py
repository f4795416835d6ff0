"""DUQ: distances to class centroids and a gradient penalty (van Amersfoort et al. 2020)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lrformer.attention import use_backend
from lrformer.core import ConfigError
from lrformer.core.modes import evaluating
from lrformer.heads.duq import DUQHead, as_one_hot
from lrformer.methods.base import BackboneFactory, BackboneMethod
from lrformer.methods.registry import METHODS


@dataclass(frozen=True, kw_only=True)
class DUQConfig:
    """Settings of `DUQ`; the defaults are the reference's on CIFAR-10.

    On two moons the reference uses length_scale 0.3, gamma 0.99, penalty 1 and centroid_dim 10.

    Attributes:
        length_scale: sigma of the kernel.
        gamma: momentum of the centroids.
        gradient_penalty: weight of `(|grad_x sum_c K_c| - 1)^2`; 0 leaves it out.
        centroid_dim: width of the embedding in which distances are taken.
    """

    length_scale: float = 0.1
    gamma: float = 0.999
    gradient_penalty: float = 0.75
    centroid_dim: int = 512

    def __post_init__(self) -> None:
        if self.gradient_penalty < 0:
            raise ConfigError(f"gradient_penalty ({self.gradient_penalty}) must not be negative.")
        if self.centroid_dim < 1:
            raise ConfigError(f"centroid_dim ({self.centroid_dim}) must be at least 1.")


@METHODS.register("duq")
class DUQ(BackboneMethod):
    """Binary cross-entropy on the kernels, a two-sided gradient penalty, moving-average centroids."""

    config_class: ClassVar[type] = DUQConfig
    uses_criterion = False
    default_score: ClassVar[str] = "kernel_distance"

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: DUQConfig) -> None:
        super().__init__(backbone, num_classes, config)
        self.head = DUQHead(
            self.num_features,
            num_classes,
            centroid_dim=config.centroid_dim,
            length_scale=config.length_scale,
            gamma=config.gamma,
        )

    @property
    def predicted_fields(self) -> frozenset[str]:
        """The fields of a `Predictive` that a prediction has."""
        return super().predicted_fields | {"distances"}

    @property
    def predicts_by_logits(self) -> bool:
        """Whether the most probable class of a prediction is that of the largest logit of `forward`."""
        return True

    def loss(self, x: Shaped[Tensor, "b ..."], y: Shaped[Tensor, "b ..."]) -> Float[Tensor, ""]:
        """Return the binary cross-entropy of the kernels plus the gradient penalty."""
        weight = self.config.gradient_penalty
        if weight == 0:
            return self._binary_loss(self(x).exp(), y)
        x = x.detach().requires_grad_()
        with _twice_differentiable(self.backbone):
            kernel = self(x).exp()
            (gradient,) = torch.autograd.grad(kernel.sum(), x, create_graph=True)
        # Rounding in the norm of a half-precision gradient would move the penalty.
        norm = gradient.flatten(1).float().norm(dim=1)
        return self._binary_loss(kernel, y) + weight * (norm - 1).square().mean()

    def _binary_loss(self, kernel: Tensor, y: Tensor) -> Tensor:
        target = as_one_hot(y, self.num_classes).to(kernel.dtype)
        # torch's loss takes nothing but [0, 1], and on a GPU NaN would end the process: the loop is to see it instead.
        is_nan = kernel.isnan()
        with torch.autocast(device_type=kernel.device.type, enabled=False):
            loss = nn.functional.binary_cross_entropy(kernel.masked_fill(is_nan, 0), target)
        return loss.masked_fill(is_nan.any(), torch.nan)

    @torch.no_grad()
    def after_step(self, x: Shaped[Tensor, "b ..."], y: Shaped[Tensor, "b ..."]) -> None:
        """Move the centroids, with the new weights and in evaluation mode."""
        with evaluating(self):
            self.head.update_centroids(self.features(x), y)


@contextmanager
def _twice_differentiable(backbone: nn.Module) -> Iterator[None]:
    """Compute attention so that the gradient has a gradient; fused kernels do not."""
    with use_backend(backbone, "reference"), sdpa_kernel(SDPBackend.MATH):
        yield
