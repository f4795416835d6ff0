"""The exponential moving average of the weights."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def average_weight(step: int, decay: float) -> float:
    """Return how much of the weights after step `step` enters the average: more while training is young.

    The decay in force is `min(decay, (1 + t) / (10 + t))`, so that a random start is soon forgotten.
    """
    return 1 - min(decay, (1 + step) / (10 + step))


class WeightAverage:
    """A moving average of `parameters`; buffers are not averaged, they follow the training model."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, weight: float | Tensor) -> None:
        """Move the average by the share `weight` towards the present weights."""
        differences = torch._foreach_sub(list(self.parameters), self.averages)
        torch._foreach_mul_(differences, weight)
        torch._foreach_add_(self.averages, differences)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Make the average the weights of the model."""
        torch._foreach_copy_(list(self.parameters), self.averages)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Run the block with the average as the weights of the model, and put the weights back."""
        kept = [parameter.detach().clone() for parameter in self.parameters]
        self.copy_to_model()
        try:
            yield
        finally:
            # In place, because a captured CUDA graph knows the weights by their address.
            with torch.no_grad():
                torch._foreach_copy_(list(self.parameters), kept)
