"""The loss on logits, with soft targets and smoothing; it also counts how often the logits are right."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lrformer.heads.duq import as_one_hot


class Criterion:
    """Cross-entropy, or the binary cross-entropy of every class, for labels or rows of probabilities.

    Attributes:
        counts: right answers and answers so far, on the device; nothing is read back while training.
    """

    def __init__(
        self, *, name: str = "cross_entropy", label_smoothing: float = 0.0, device: torch.device
    ) -> None:
        self.name = name
        self.label_smoothing = label_smoothing
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
        if self.name == "cross_entropy":
            return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        num_classes = logits.shape[-1]
        rows = as_one_hot(targets, num_classes).to(logits.dtype)
        smooth = rows * (1 - self.label_smoothing) + self.label_smoothing / num_classes
        return F.binary_cross_entropy_with_logits(logits, smooth)

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
