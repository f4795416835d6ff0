"""The head of DUQ: a kernel to one centroid per class, in an embedding of its own for each class."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed, nn

from lrformer.core import ConfigError
from lrformer.core.full_precision import (
    apply_without_rounding,
    at_least_float32,
    without_autocast,
)
from lrformer.core.processes import num_processes
from lrformer.heads.predictive import Predictive


class DUQHead(nn.Module):
    """Kernels `K_c(x) = exp(-mean_m (W_c x - e_c)^2 / (2 sigma^2))` to moving-average centroids.

    `forward` returns `log K`: its softmax is the normalized kernel, and it does not underflow.
    Call `update_centroids` after each optimizer step, in evaluation mode, with the features of the
    same batch; in distributed training the statistics are those of all processes.
    """

    counts: Tensor
    sums: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        centroid_dim: int = 512,
        length_scale: float = 0.1,
        gamma: float = 0.999,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not length_scale > 0:
            raise ConfigError(f"length_scale ({length_scale}) must be positive.")
        if not 0 < gamma < 1:
            raise ConfigError(f"gamma ({gamma}) must lie between 0 and 1.")
        self.num_classes = num_classes
        self.length_scale = length_scale
        self.gamma = gamma
        # The reference draws (m, c, e) he-normal, whose fan-in torch takes to be c * e.
        std = (2 / (num_classes * in_features)) ** 0.5
        weight = torch.randn(num_classes, centroid_dim, in_features, generator=generator)
        self.weight = nn.Parameter(std * weight)
        # Counts of zero mean "before the first batch": the sums then hold the initial centroids.
        self.register_buffer("counts", torch.zeros(num_classes))
        initial = torch.randn(num_classes, centroid_dim, generator=generator)
        self.register_buffer("sums", 0.05 * initial)

    def _apply(self, fn, recurse=True):
        up = super()._apply
        # A moving average with a memory of a thousand batches does not move in 16 bits.
        names = ("counts", "sums")
        apply_without_rounding(self, names, lambda: up(fn, recurse), least=torch.float32)
        return self

    @property
    def centroids(self) -> Float[Tensor, "c m"]:
        """Return the moving averages of the embeddings of each class."""
        counts = torch.where(self.counts > 0, self.counts, 1.0)
        return self.sums / counts.unsqueeze(-1)

    def embed(self, features: Float[Tensor, "b e"]) -> Float[Tensor, "b c m"]:
        """Return the embedding of each input for each class, in float32 or better."""
        with without_autocast(features):
            features = at_least_float32(features)
            flat = features @ self.weight.to(features.dtype).flatten(0, 1).mT
            return flat.unflatten(-1, self.weight.shape[:2])

    def forward(self, features: Float[Tensor, "b e"]) -> Float[Tensor, "b c"]:
        """Return `log K_c`, which is minus the squared distance over `2 sigma^2`."""
        embedding = self.embed(features)
        squared = (embedding - self.centroids.to(embedding.dtype)).square().mean(-1)
        return -squared / (2 * self.length_scale**2)

    @torch.no_grad()
    def update_centroids(
        self,
        features: Float[Tensor, "b e"],
        targets: Int[Tensor, " b"] | Float[Tensor, "b c"],
    ) -> None:
        """Move each centroid towards the embeddings of its class in this batch."""
        embedding = self.embed(features)
        one_hot = as_one_hot(targets, self.num_classes).to(embedding.dtype)
        counts = one_hot.sum(0)
        sums = torch.einsum("bc,bcm->cm", one_hot, embedding)
        if num_processes() > 1:
            distributed.all_reduce(counts)
            distributed.all_reduce(sums)
        # Before the first batch: as many examples of each class as a balanced batch holds.
        is_new = self.counts == 0
        start = counts.sum() / self.num_classes
        old_counts = torch.where(is_new, start, self.counts)
        old_sums = torch.where(is_new.unsqueeze(-1), self.sums * start, self.sums)
        self.counts.copy_(torch.lerp(counts.to(self.counts), old_counts, self.gamma))
        self.sums.copy_(torch.lerp(sums.to(self.sums), old_sums, self.gamma))

    def predict(
        self,
        features: Float[Tensor, "b e"],
        generator: torch.Generator | None = None,  # noqa: ARG002 - every head takes one
    ) -> Predictive:
        """Return the kernels as logits, with the distances to the centroids."""
        log_kernel = self(features)
        return Predictive(logits=log_kernel, distances=-log_kernel)


def as_one_hot(
    targets: Int[Tensor, " b"] | Float[Tensor, "b c"], num_classes: int
) -> Float[Tensor, "b c"]:
    """Return class indices as rows of zeros and a one; rows of probabilities are returned unchanged."""
    if targets.is_floating_point():
        return targets
    return nn.functional.one_hot(targets.long(), num_classes).float()
