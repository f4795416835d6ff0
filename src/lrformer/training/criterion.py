"""The loss on logits, with soft targets and smoothing; it also counts how often the logits are right."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lrformer.heads.duq import as_one_hot


def balanced_weights(counts: Int[np.ndarray, " c"]) -> Float[Tensor, " c"]:
    """Return weights under which every class that is there counts alike, one on average over the samples."""
    present = counts > 0
    weights = np.zeros(len(counts))
    weights[present] = counts.sum() / (present.sum() * counts[present])
    return torch.tensor(weights, dtype=torch.float32)


class Criterion:
    """Cross-entropy, or the binary cross-entropy of every class, for labels or rows of probabilities.

    Attributes:
        class_weights: how much a sample of each class counts, one on average; None counts all alike. A sample with a
            soft target counts as much as its classes on average.
        counts: right answers and answers so far, on the device; nothing is read back while training.
    """

    def __init__(
        self,
        *,
        name: str = "cross_entropy",
        label_smoothing: float = 0.0,
        class_weights: Float[Tensor, " c"] | None = None,
        device: torch.device,
    ) -> None:
        self.name = name
        self.label_smoothing = label_smoothing
        self.class_weights = None if class_weights is None else class_weights.to(device)
        self.counts = torch.zeros(2, device=device)
        self._recorded: list[Tensor] | None = None

    def __call__(
        self,
        logits: Float[Tensor, "b c"],
        targets: Int[Tensor, " b"] | Float[Tensor, "b c"],
    ) -> Float[Tensor, ""]:
        """Return the mean loss of a batch."""
        logits = logits.float()
        if self._recorded is not None:
            self._recorded.append(logits.detach())
        else:
            self._count(logits.detach(), targets)
        if self.class_weights is None:
            return self._loss(logits, targets, reduction="mean")
        weights = as_one_hot(targets, logits.shape[-1]) @ self.class_weights
        losses = self._loss(logits, targets, reduction="none")
        # Divided by the number and not by the weights of the batch: pieces of it then add up to it.
        return (weights * losses.reshape(len(weights), -1).mean(-1)).mean()

    def _loss(self, logits: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
        if self.name == "cross_entropy":
            return F.cross_entropy(
                logits, targets, label_smoothing=self.label_smoothing, reduction=reduction
            )
        num_classes = logits.shape[-1]
        rows = as_one_hot(targets, num_classes).to(logits.dtype)
        smooth = rows * (1 - self.label_smoothing) + self.label_smoothing / num_classes
        return F.binary_cross_entropy_with_logits(logits, smooth, reduction=reduction)

    def _count(self, logits: Tensor, targets: Tensor) -> None:
        labels = targets.argmax(-1) if targets.is_floating_point() else targets
        right = (logits.argmax(-1) == labels).sum()
        self.counts += torch.stack([right, torch.full_like(right, labels.shape[0])])

    @contextmanager
    def recording(self) -> Iterator[list[Tensor]]:
        """Yield a list that takes the logits of every loss in the block; they are not counted."""
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None
