"""A training loop for points in the plane: a few hundred steps in memory, by the hooks of a method."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.methods import Method


@dataclass(frozen=True, kw_only=True)
class PointTraining:
    """How a method is trained on points: AdamW with a cosine after a linear warm-up, clipped gradients.

    Attributes:
        epochs: of every stage; an ensemble has one stage for each member.
        warmup: share of the steps in which the learning rate rises.
    """

    epochs: int = 20
    batch_size: int = 128
    lr: float = 3e-3
    weight_decay: float = 1e-4
    warmup: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(
                f"epochs ({self.epochs}) and batch_size ({self.batch_size}) must be at least 1."
            )

    def learning_rate(self, step: int, num_steps: int) -> float:
        """Return the rate of one step of `num_steps`."""
        rise = self.warmup * num_steps
        if step < rise:
            return self.lr * min(1.0, (step + 1) / rise)
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / (num_steps - rise)))


def fit_points(
    method: Method,
    x: Float[Tensor, "b 2"],
    y: Int[Tensor, " b"],
    config: PointTraining,
    *,
    generator: torch.Generator,
    log: Path | None = None,
) -> float:
    """Return the mean loss of the last epoch, after training `method` and fitting its posterior.

    Args:
        generator: of the order of the points.
        log: file to which one line is added after every epoch.
    """
    batches = [(x[rows], y[rows]) for rows in _order(len(x), config.batch_size, generator)]
    method.train()
    method.prepare(batches)
    mean_loss = math.nan
    for stage in range(method.num_stages):
        method.start_stage(stage)
        parameters = list(method.stage_parameters())
        optimizer = torch.optim.AdamW(parameters, config.lr, weight_decay=config.weight_decay)
        for epoch in range(config.epochs):
            method.train()
            method.on_epoch_start()
            order = _order(len(x), config.batch_size, generator)
            total = 0.0
            for step, rows in enumerate(order, epoch * len(order)):
                for group in optimizer.param_groups:
                    group["lr"] = config.learning_rate(step, config.epochs * len(order))
                optimizer.zero_grad()
                loss = method.loss(x[rows], y[rows])
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, config.clip_norm)
                optimizer.step()
                method.after_step(x[rows], y[rows])
                total += float(loss.detach()) * len(rows)
            mean_loss = total / len(x)
            if log is not None:
                _add_line(log, stage=stage, epoch=epoch, loss=mean_loss)
        method.finish_stage()
    method.eval()
    method.fit_posterior(batches)
    return mean_loss


def _order(num_points: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return the rows of every batch of one epoch."""
    return torch.randperm(num_points, generator=generator).split(batch_size)


def _add_line(path: Path, **values: float) -> None:
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")
