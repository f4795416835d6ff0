"""What several processes of one training share."""

import gc
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, distributed

from lrformer.core.errors import ConfigError

T = TypeVar("T")


def num_processes() -> int:
    """Return how many processes work together; 1 where nobody has started a group."""
    ready = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if ready else 1


def gather_objects(own: T) -> list[T]:
    """Return what every process has, in the order of the processes; every process calls it."""
    if num_processes() == 1:
        return [own]
    everyone: list[Any] = [None] * num_processes()
    distributed.all_gather_object(everyone, own)
    return everyone


def gather_rows(
    parts: Sequence[Float[Tensor, "_ e"]], device: torch.device
) -> Float[Tensor, "n e"]:
    """Return the rows of all processes, in the same order in each; every process calls it.

    A process whose loader gave nothing calls it with no parts: it must not leave the others waiting.

    Raises:
        ConfigError: in every process, when none of them has rows.
    """
    if num_processes() > 1:
        everyone = gather_objects([part.cpu() for part in parts])
        parts = [part.to(device) for own in everyone for part in own]
    return join_rows(parts)


def join_rows(parts: Sequence[Float[Tensor, "_ e"]]) -> Float[Tensor, "n e"]:
    """Return the rows of all batches of a loader, of which there must be one at least."""
    if not parts:
        raise ConfigError("loader is empty; it must give at least one batch.")
    return torch.cat(list(parts))


def take_from_first(*tensors: Tensor) -> None:
    """Overwrite tensors by those of the first process; every process calls it."""
    if num_processes() > 1:
        for tensor in tensors:
            distributed.broadcast(tensor, src=0)


def leave_group() -> None:
    """Leave the others, where there is a group; one that lasts as long as the interpreter may abort it at its end."""
    if distributed.is_available() and distributed.is_initialized():
        gc.collect()  # a model that was wrapped for the group holds it, in a cycle
        distributed.destroy_process_group()
