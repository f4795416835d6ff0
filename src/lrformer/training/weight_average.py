"""The exponential moving average of the weights, and of the running statistics that belong to them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lrformer.core.processes import take_from_first

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def average_weight(step: int, decay: float) -> float:
    """Return how much of the weights after step `step` enters the average: more while training is young.

    The decay in force is `min(decay, (1 + t) / (10 + t))`, so that a random start is soon forgotten.
    """
    return 1 - min(decay, (1 + step) / (10 + step))


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Return the running mean and variance of every batch norm in `module`, the tensors themselves."""
    norms = [part for part in module.modules() if isinstance(part, BATCH_NORMS)]
    found = [value for norm in norms for value in (norm.running_mean, norm.running_var)]
    return [value for value in found if value is not None]


class WeightAverage:
    """A moving average of `parameters` and, with the same weights, of `statistics`.

    Batch norm with averaged weights needs statistics of about those weights; those of the training model belong to the
    last ones. Other buffers are not averaged, they follow the training model.

    Args:
        statistics: from `running_statistics`.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], statistics: Iterable[Tensor] = ()
    ) -> None:
        weights: list[Tensor] = list(parameters)
        self.num_parameters = len(weights)
        self.tensors = [*weights, *statistics]
        self.averages = [tensor.detach().clone() for tensor in self.tensors]

    @torch.no_grad()
    def update(self, weight: float | Tensor) -> None:
        """Move the average by the share `weight` towards the present weights."""
        differences = torch._foreach_sub(self.tensors, self.averages)
        torch._foreach_mul_(differences, weight)
        torch._foreach_add_(self.averages, differences)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Make the average the weights of the model; with several processes, all of them call it."""
        # Each process has statistics of its own part of the batches; the first one's are kept.
        take_from_first(*self.averages[self.num_parameters :])
        torch._foreach_copy_(self.tensors, self.averages)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Run the block with the average as the weights of the model, and put the weights back."""
        kept = [tensor.detach().clone() for tensor in self.tensors]
        self.copy_to_model()
        try:
            yield
        finally:
            # In place, because a captured CUDA graph knows the weights by their address.
            with torch.no_grad():
                torch._foreach_copy_(self.tensors, kept)
