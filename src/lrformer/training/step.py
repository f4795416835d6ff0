"""One step of the optimizer, as plain code and as a captured CUDA graph."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.data import Batch, DeviceBatches
from lrformer.methods import Method
from lrformer.training.weight_average import WeightAverage

NUM_EAGER_STEPS = 3


class LossModule(nn.Module):
    """The loss of a method as a forward pass, which is what DistributedDataParallel wraps."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the training loss of a batch."""
        return self.method.loss(x, y)


class Rates:
    """What changes from step to step: the learning rate, and the share that enters the average.

    On a GPU both are tensors that are written in place, because a captured step reads them there.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: Callable[[int], float],
        average_weight: Callable[[int], float],
        device: torch.device,
    ) -> None:
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self._average_weight_at = average_weight
        self.average_weight: float | Tensor = torch.zeros((), device=device)
        if device.type == "cpu":
            self.average_weight = 0.0

    def set(self, step: int) -> None:
        """Put the values of step `step` of the stage in force."""
        lr, weight = self.learning_rate(step), self._average_weight_at(step)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if isinstance(self.average_weight, Tensor):
            self.average_weight.fill_(weight)
        else:
            self.average_weight = weight


@dataclass(kw_only=True, eq=False)
class OptimizerStep:
    """Forward, backward, clipping, step and average for the pieces of one batch; reads nothing back.

    Attributes:
        loss_module: what Accelerate made of a `LossModule`.
        dtype: of the forward pass under autocast; None is float32.
        totals: sum of the losses and number of samples so far, on the device.
    """

    accelerator: Any
    method: Method
    loss_module: nn.Module
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    rates: Rates
    average: WeightAverage | None
    clip_norm: float | None
    dtype: torch.dtype | None
    totals: Tensor = field(init=False)

    def __post_init__(self) -> None:
        device = self.parameters[0].device
        self.totals = torch.zeros(2, dtype=torch.float64, device=device)

    def __call__(self, pieces: Sequence[Batch]) -> None:
        """Take one step on `pieces`, whose mean loss counts as one batch."""
        self.optimizer.zero_grad(set_to_none=True)
        for index, batch in enumerate(pieces):
            is_last = index == len(pieces) - 1
            # Gradients travel between processes once a step, with the last piece.
            with nullcontext() if is_last else self.accelerator.no_sync(self.loss_module):
                with self.autocast(batch.inputs.device):
                    loss = self.loss_module(batch.inputs, _targets(batch))
                self.accelerator.backward(loss / len(pieces))
            count = batch.inputs.shape[0]
            loss = loss.detach().double()
            self.totals += torch.stack([loss * count, torch.full_like(loss, count)])
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.rates.average_weight)
        # Pieces are there because a batch is too large: they are put together only for a method that asks for it.
        if type(self.method).after_step is not Method.after_step:
            self._follow(pieces)

    def _follow(self, pieces: Sequence[Batch]) -> None:
        """Let the method look at the whole batch, once: a moving average would move further with every piece."""
        inputs = torch.cat([batch.inputs for batch in pieces])
        targets = torch.cat([_targets(batch) for batch in pieces])
        with self.autocast(inputs.device):
            self.method.after_step(inputs, targets)

    def autocast(self, device: torch.device) -> Any:
        """Return the context of the forward pass."""
        # Without the cache of casts, which must not outlive a captured graph.
        return torch.autocast(
            device.type, self.dtype, enabled=self.dtype is not None, cache_enabled=False
        )


class CapturedStep:
    """The whole step, augmentation included, as one CUDA graph: the CPU launches it once.

    The first steps run as plain code, which lets libraries set themselves up; they are real steps.
    Where the capture fails, `is_captured` stays False and plain code goes on.
    """

    def __init__(
        self, step: OptimizerStep, batches: DeviceBatches, *, accumulate: int, is_required: bool
    ) -> None:
        self.step = step
        self.batches = batches
        self.is_required = is_required
        shape = (accumulate, batches.batch_size)
        self.indices = torch.zeros(shape, dtype=torch.int64, device=batches.device)
        self.keys = torch.zeros_like(self.indices)
        self.failure: str | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        # Autograd remembers the stream of the first steps, so the capture has to be on the same.
        self._stream = torch.cuda.Stream(batches.device)
        self._num_eager = 0

    @property
    def is_captured(self) -> bool:
        """Return whether steps are replayed."""
        return self._graph is not None

    def __call__(self, indices: Int[Tensor, "k b"], keys: Int[Tensor, "k b"]) -> None:
        """Take one step on the samples of these rows and keys."""
        self.indices.copy_(indices)
        self.keys.copy_(keys)
        if self._graph is None and self.failure is None and self._num_eager >= NUM_EAGER_STEPS:
            self._graph = self._capture()
        if self._graph is not None:
            self._graph.replay()
            return
        self._num_eager += 1
        if self.failure is not None:
            self._run()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._run()
        torch.cuda.current_stream().wait_stream(self._stream)

    def _run(self) -> None:
        self.step(
            [
                self.batches.assemble(indices, keys)
                for indices, keys in zip(self.indices, self.keys, strict=True)
            ]
        )

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        self.step.optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._run()
        except RuntimeError as error:
            self.failure = str(error).splitlines()[0]
            if self.is_required:
                raise ConfigError(
                    f"cuda_graph is on, but this method's step cannot be captured ({self.failure}); "
                    "take cuda_graph='auto' or False."
                ) from error
            torch.cuda.synchronize()
            return None
        return graph


def epoch_plan(
    batches: DeviceBatches, epoch: int, *, num_steps: int, accumulate: int
) -> tuple[Int[Tensor, "s k b"], Int[Tensor, "s k b"]]:
    """Return the rows and keys of every step and piece of an epoch of one process, on the device."""
    size = batches.batch_size
    order = batches.order(epoch)[: num_steps * accumulate * size].to(batches.device)
    rows = order.view(num_steps, accumulate, size)
    return rows, batches.keys(order, epoch).view_as(rows)


def _targets(batch: Batch) -> Tensor:
    return batch.labels if batch.targets is None else batch.targets
