"""Two processes on the CPU give the weights and the posterior of one."""

import dataclasses
import os
import socket
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from lrformer.data import SHIFT_AND_FLIP
from lrformer.training import TrainConfig, train
from tests.tolerance import assert_close
from tests.training.small import PLAIN, QUIET, flat, small

NUM_PROCESSES = 2
CONFIG = small(
    PLAIN,
    name="sgd",
    lr=0.02,
    method="lrformer",
    method_overrides={"num_random_features": 32},
    epochs=2,
    accumulate=2,
    augment=SHIFT_AND_FLIP,
    ema_decay=0.9,
)


FITTED = dataclasses.replace(
    CONFIG,
    epochs=1,
    batch_size=16,  # more steps than lie between two saves
    method_overrides={
        "num_random_features": 32,
        "head": "fitted",
        "feature_scale": "calibrate",
        "choose_length_scale": True,
    },
)


# Inside an epoch too, where a process that is fitted after training has gathered nothing.
OFTEN = dataclasses.replace(QUIET, save_seconds=0.0)


def run_process(rank: int, folder: str, port: int, config: TrainConfig) -> None:
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
    train(config, folder, runtime=OFTEN)
    assert distributed.get_world_size() == NUM_PROCESSES
    distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("config", [CONFIG, FITTED], ids=["trained", "fitted"])
def test_two_processes_give_the_run_of_one(tmp_path: Path, config: TrainConfig) -> None:
    multiprocessing.spawn(
        run_process, args=(str(tmp_path / "two"), free_port(), config), nprocs=NUM_PROCESSES
    )
    train(config, tmp_path / "one", runtime=QUIET)
    for name in ("model.safetensors", "posterior.safetensors"):
        one, two = (flat(tmp_path / run, name) for run in ("one", "two"))
        assert_close(two, one, 1e-5)
