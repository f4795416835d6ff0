"""Ctrl-C after a step with a known number."""

import os
import signal

from lrformer.training.step import OptimizerStep


def stop_at(monkeypatch, number: int, action) -> None:
    """Call `action` after the optimizer step with this number."""
    count = 0
    step = OptimizerStep.__call__

    def counting(self, pieces):
        nonlocal count
        step(self, pieces)
        count += 1
        if count == number:
            action()

    monkeypatch.setattr(OptimizerStep, "__call__", counting)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
