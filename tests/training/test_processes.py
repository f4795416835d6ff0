"""Two processes on the CPU give the weights and the posterior of one."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from lrformer.core import ConfigError
from lrformer.data import SHIFT_AND_FLIP
from lrformer.training import RuntimeConfig, TrainConfig, running, train
from lrformer.training.journal import read_log
from lrformer.training.processes import idle_gpus
from tests.processes import run_together
from tests.tolerance import assert_close
from tests.training.interruption import interrupt, stop_at
from tests.training.small import PLAIN, QUIET, flat, small

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
    score="chosen",
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


def run_process(rank: int, folder: Path, config: TrainConfig, last_step: int | None = None) -> None:
    """Train as one of the processes; the first of them is interrupted after its step `last_step`."""
    if rank == 0 and last_step is not None:
        stop_at(pytest.MonkeyPatch(), last_step, interrupt)
    with nullcontext() if last_step is None else pytest.raises(KeyboardInterrupt):
        train(config, folder, runtime=OFTEN)


@pytest.mark.parametrize(
    ("device", "num_gpus", "num_processes", "is_said"),
    [("cuda", 2, 1, True), ("cuda", 2, 2, False), ("cuda", 1, 1, False), ("cpu", 2, 1, False)],
)
def test_gpus_that_are_not_used_are_said(
    monkeypatch, device: str, num_gpus: int, num_processes: int, is_said: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    hint = idle_gpus(torch.device(device), num_processes)
    assert (hint is not None) == is_said
    if hint is not None:
        assert "using 1 of 2 GPUs" in hint
        assert "torchrun --standalone --nproc-per-node 2 -m lrformer train" in hint


def test_the_hint_is_said_by_a_training_and_not_by_a_finished_run(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    seen: list[tuple[str, int]] = []

    def hint(device: torch.device, num_processes: int) -> str:
        seen.append((device.type, num_processes))
        return "using 1 of 9 GPUs"

    monkeypatch.setattr(running, "idle_gpus", hint)
    for _ in range(2):
        train(small(PLAIN, epochs=1), tmp_path, runtime=RuntimeConfig(device="cpu"))
    assert capsys.readouterr().err.count("using 1 of 9 GPUs\n") == 1
    assert seen == [("cpu", 1)]


# How far one epoch spreads the features depends on the first weights, which torch 2.11 draws otherwise than 2.15.
@pytest.mark.filterwarnings("ignore:the variance carries no distance")
@pytest.mark.parametrize("config", [CONFIG, FITTED], ids=["trained", "fitted"])
def test_two_processes_give_the_run_of_one(tmp_path: Path, config: TrainConfig) -> None:
    run_together(run_process, tmp_path / "two", config)
    train(config, tmp_path / "one", runtime=QUIET)
    for name in ("model.safetensors", "posterior.safetensors"):
        one, two = (flat(tmp_path / run, name) for run in ("one", "two"))
        assert_close(two, one, 1e-5)


def test_every_process_goes_on_with_its_own_dropout(tmp_path: Path) -> None:
    dropped = {"head_drop_rate": 0.5}
    config = small(PLAIN, epochs=1, batch_size=16, method="mc_dropout", method_overrides=dropped)

    run_together(run_process, tmp_path / "straight", config)
    run_together(run_process, tmp_path / "resumed", config, 2)
    assert not (tmp_path / "resumed" / "metrics.json").exists()
    run_together(run_process, tmp_path / "resumed", config)
    names = ("straight", "resumed")
    straight, resumed = (flat(tmp_path / name, "model.safetensors") for name in names)
    assert_close(resumed, straight, 1e-7)


def test_a_wish_to_stop_is_heard_in_epochs_of_few_steps_too(tmp_path: Path) -> None:
    config = small(PLAIN, epochs=4, batch_size=64)
    run_together(run_process, tmp_path / "run", config, 2)
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert len(read_log(tmp_path / "run")) <= 1
    run_together(run_process, tmp_path / "run", config)
    assert len(read_log(tmp_path / "run")) == 4


def test_an_epoch_that_was_stopped_is_logged_as_one_that_was_not(tmp_path: Path) -> None:
    config = small(PLAIN, epochs=1, batch_size=16)
    run_together(run_process, tmp_path / "straight", config)
    run_together(run_process, tmp_path / "resumed", config, 2)
    run_together(run_process, tmp_path / "resumed", config)
    (straight,), (resumed,) = (read_log(tmp_path / name) for name in ("straight", "resumed"))
    for name in ("loss", "accuracy", "val_nll"):
        assert resumed[name] == pytest.approx(straight[name], rel=1e-6)


def run_apart(rank: int, folder: Path) -> None:
    """Train in a folder that the other process does not see."""
    with pytest.raises(ConfigError, match="is not the same folder in every process"):
        train(small(PLAIN, epochs=1), folder / str(rank), runtime=QUIET)


def test_processes_that_do_not_see_one_folder_are_refused(tmp_path: Path) -> None:
    run_together(run_apart, tmp_path)
    assert not any(path.name.startswith(".") for path in tmp_path.rglob("*"))
