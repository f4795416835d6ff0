"""Everything that one stage of a run trains with: parameters, optimizer, average and the step itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lrformer.data import DeviceBatches
from lrformer.methods import DeepEnsemble, Method
from lrformer.training import state as saved
from lrformer.training.config import RuntimeConfig, TrainConfig
from lrformer.training.criterion import Criterion
from lrformer.training.optimizers import build_optimizer, parameter_groups
from lrformer.training.processes import autocast_dtype
from lrformer.training.step import CapturedStep, LossModule, OptimizerStep, Rates
from lrformer.training.weight_average import WeightAverage, average_weight, running_statistics


@dataclass(kw_only=True, eq=False)
class Stage:
    """One stage in training; its tensors are what a resumed run needs beside the model."""

    step: OptimizerStep
    captured: CapturedStep | None
    criterion: Criterion

    @property
    def average(self) -> WeightAverage | None:
        """Return the moving average of the weights, if one is kept."""
        return self.step.average

    def start_epoch(self) -> None:
        """Forget the sums of the epoch before."""
        self.step.totals.zero_()
        self.criterion.counts.zero_()

    def is_finite(self) -> bool:
        """Return whether every weight is still a number."""
        norms = torch._foreach_norm([p.detach() for p in self.step.parameters])
        return bool(torch.stack(list(norms)).isfinite().all())

    def tensors(self) -> dict[str, Tensor]:
        """Return optimizer, average and the sums of the epoch as named tensors."""
        tensors = saved.with_prefix(saved.optimizer_tensors(self.step.optimizer), "optimizer")
        tensors |= {"totals": self.step.totals, "counts": self.criterion.counts}
        if self.average is not None:
            kept = {str(index): value for index, value in enumerate(self.average.averages)}
            tensors |= saved.with_prefix(kept, "average")
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` returned; a state from between two stages has nothing to put back."""
        if "totals" not in tensors:
            return
        saved.load_optimizer(self.step.optimizer, saved.strip_prefix(tensors, "optimizer"))
        self.step.totals.copy_(tensors["totals"])
        self.criterion.counts.copy_(tensors["counts"])
        if self.average is not None:
            kept = saved.strip_prefix(tensors, "average")
            for index, value in enumerate(self.average.averages):
                # A state without averaged statistics goes on from those of the model.
                if index < self.average.num_parameters or str(index) in kept:
                    value.copy_(kept[str(index)])


def start_stage(
    index: int,
    *,
    config: TrainConfig,
    runtime: RuntimeConfig,
    accelerator: Any,
    method: Method,
    learnable: set[int],
    criterion: Criterion,
    batches: DeviceBatches,
    learning_rate: Callable[[int], float],
) -> Stage:
    """Return stage `index` of `method`, ready for its first step.

    Args:
        learnable: identities of the parameters that any stage may train.
    """
    device = accelerator.device
    method.start_stage(index)
    for parameter in method.parameters():
        parameter.requires_grad_(id(parameter) in learnable)
    trained = list(method.stage_parameters())
    # DistributedDataParallel waits for the gradient of every parameter that may have one.
    identities = {id(parameter) for parameter in trained}
    for parameter in method.parameters():
        parameter.requires_grad_(id(parameter) in identities)
    groups = parameter_groups(method, trained, config.optimizer)
    optimizer = build_optimizer(config.optimizer, groups, device)
    if runtime.compile:
        _compile(method, index)
    decay = config.ema_decay
    step = OptimizerStep(
        accelerator=accelerator,
        method=method,
        loss_module=accelerator.prepare_model(LossModule(method)),
        optimizer=optimizer,
        parameters=trained,
        rates=Rates(
            optimizer, learning_rate, lambda step: average_weight(step, decay or 0), device
        ),
        average=None if decay is None else WeightAverage(trained, running_statistics(method)),
        clip_norm=config.optimizer.clip_norm,
        dtype=autocast_dtype(config.precision, device),
    )
    criterion.counts.zero_()
    captured = None
    if _is_capturing(runtime, accelerator, batches):
        captured = CapturedStep(
            step, batches, accumulate=config.accumulate, is_required=runtime.cuda_graph is True
        )
    return Stage(step=step, captured=captured, criterion=criterion)


def _is_capturing(runtime: RuntimeConfig, accelerator: Any, batches: DeviceBatches) -> bool:
    """Return whether a captured step is wanted and possible."""
    is_possible = (
        accelerator.device.type == "cuda" and accelerator.num_processes == 1 and batches.is_resident
    )
    return is_possible and runtime.cuda_graph is not False


def _compile(method: Method, index: int) -> None:
    """Compile what computes features; names of parameters stay as they are."""
    part: nn.Module = method
    if isinstance(method, DeepEnsemble):
        part = method.get_submodule(f"members.{index}")
    elif isinstance(getattr(method, "backbone", None), nn.Module):
        part = method.get_submodule("backbone")
    part.compile()
