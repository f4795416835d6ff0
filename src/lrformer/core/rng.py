"""Randomness: the one file that touches global seeds. Everything else takes a `torch.Generator`."""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device, for code that draws from the global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - libraries still draw from it
    torch.manual_seed(seed)


def make_generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator on `device` that starts from `seed`."""
    return torch.Generator(device=device).manual_seed(seed)
