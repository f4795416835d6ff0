"""Randomness: the one file that touches global seeds. Everything else takes a `torch.Generator`.

torch is imported when it is used: the command line must start, and complain, without it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device, for code that draws from the global generators."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - libraries still draw from it
    torch.manual_seed(seed)


def make_generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator on `device` that starts from `seed`."""
    import torch

    return torch.Generator(device=device).manual_seed(seed)
