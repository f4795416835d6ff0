"""What several processes of one training share."""

import torch
from jaxtyping import Float
from torch import Tensor, distributed


def num_processes() -> int:
    """Return how many processes work together; 1 where nobody has started a group."""
    ready = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if ready else 1


def gather_rows(rows: Float[Tensor, "b e"]) -> Float[Tensor, "n e"]:
    """Return the rows of all processes, in the same order in each; every process calls it."""
    if num_processes() == 1:
        return rows
    parts: list[Tensor | None] = [None] * num_processes()
    distributed.all_gather_object(parts, rows.cpu())
    return torch.cat([part for part in parts if part is not None]).to(rows.device)


def take_from_first(*tensors: Tensor) -> None:
    """Overwrite tensors by those of the first process; every process calls it."""
    if num_processes() > 1:
        for tensor in tensors:
            distributed.broadcast(tensor, src=0)
