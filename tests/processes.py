"""Two processes on the CPU that work together, as a launcher would start them."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, multiprocessing

from lrformer.core.processes import leave_group

NUM_PROCESSES = 2


def run_together(work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in two processes; it starts their group, and what it holds of it ends with it."""
    multiprocessing.spawn(_run_one, (_free_port(), work, arguments), nprocs=NUM_PROCESSES)


def _run_one(rank: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(NUM_PROCESSES),
        "LOCAL_WORLD_SIZE": str(NUM_PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    work(rank, *arguments)
    assert distributed.get_world_size() == NUM_PROCESSES
    leave_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
