"""The learning rate of every step: a linear rise, then half a cosine or a few steps down."""

import math

from lrformer.training.config import OptimizerConfig


def learning_rate(
    step: int, *, num_steps: int, warmup_steps: int, config: OptimizerConfig
) -> float:
    """Return the rate of step `step`, counted from 0: it reaches `config.rate` when the warm-up ends."""
    if step < warmup_steps:
        return config.rate * (step + 1) / warmup_steps
    if config.schedule == "steps":
        # In whole steps: a share of them is seldom a number that floating point has.
        taken = sum(step >= round(share * num_steps) for share in config.steps_at)
        return config.rate * config.step_factor**taken
    progress = (step - warmup_steps) / max(num_steps - warmup_steps, 1)
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return config.rate * (config.final_lr_ratio + (1 - config.final_lr_ratio) * cosine)
