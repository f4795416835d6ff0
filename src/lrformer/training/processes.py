"""The processes that train together, one or many, through Accelerate."""

from typing import Any

import torch

from lrformer.core import ConfigError


def check_device(device: str) -> None:
    """Raise where no training can run on the device of this name."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device ('{device}') must be 'auto', 'cpu' or 'cuda'.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', but torch sees no GPU; take 'auto' or 'cpu'.")


def start_accelerator(device: str) -> Any:
    """Return an Accelerator on `device` ("auto", "cpu", "cuda"); under a launcher it joins the others."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    check_device(device)
    wanted = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    # Accelerate keeps the device of the first run of a process; the next run may want another.
    state = PartialState(cpu=wanted == "cpu")
    if state.num_processes == 1 and torch.device(state.device or "cpu").type != wanted:
        AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(cpu=wanted == "cpu", mixed_precision="no")


def idle_gpus(device: torch.device, num_processes: int) -> str | None:
    """Return a hint where one process trains on a GPU beside others that are visible and not used, or None."""
    number = torch.cuda.device_count() if device.type == "cuda" else 1
    if num_processes > 1 or number < 2:
        return None
    return (
        f"using 1 of {number} GPUs; to use all of them: torchrun --standalone --nproc-per-node {number} -m lrformer train ... "
        "(CUDA_VISIBLE_DEVICES=0 says that one is meant)"
    )


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of the forward pass where it is not float32; the weights always are."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else None
    return torch.bfloat16 if precision == "bfloat16" else None
