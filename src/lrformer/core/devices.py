"""Where tensors are to lie, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrformer.core.errors import ConfigError

if TYPE_CHECKING:
    import torch


def choose_device(device: torch.device | str) -> torch.device:
    """Return the device of this name, or raise and say which there are; "auto" is the GPU where there is one."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device ({device!r}) must be auto, cpu, cuda or cuda:N.") from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is '{device}', but torch sees {torch.cuda.device_count() or 'no'} GPU; take auto or cpu."
        )
    return place
