"""The learning rate of every step: a linear rise, then half a cosine."""

import math


def learning_rate(
    step: int, *, num_steps: int, warmup_steps: int, peak: float, final_ratio: float = 0.0
) -> float:
    """Return the rate of step `step`, counted from 0: it reaches `peak` when the warm-up ends."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(num_steps - warmup_steps, 1)
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return peak * (final_ratio + (1 - final_ratio) * cosine)
