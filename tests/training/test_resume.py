"""Stopped in any way, then the same call: the same weights to the bit. And what stops a run for good."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError
from lrformer.data import AugmentConfig
from lrformer.training import RuntimeConfig, TrainingDivergedError, running, train
from lrformer.training.atomic_files import RunFileError
from lrformer.training.claim import claim_folder, sole_process
from lrformer.training.journal import read_log
from lrformer.training.loop import Training
from lrformer.training.metrics_file import read_metrics, update_metrics
from lrformer.training.run_config import read_run_config
from lrformer.training.splits import training_batches
from lrformer.training.state import read_state, write_state
from lrformer.training.step import OptimizerStep
from tests.training.interruption import interrupt, stop_at
from tests.training.small import PLAIN, QUIET, SMALL, small, weights

ROOT = Path(__file__).parents[2]
EVERY_STEP = RuntimeConfig(device="cpu", quiet=True, save_seconds=0.0)
LONG = small(epochs=6, batch_size=16)
SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from tests.training.test_resume import EVERY_STEP, LONG, train
train(LONG, sys.argv[1], runtime=EVERY_STEP)
"""


def test_a_killed_run_resumes_and_ends_with_the_same_bits(tmp_path):
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(killed)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    try:
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            found = read_state(killed) if (killed / "state").is_dir() else None
            if found is not None and found[0].epoch >= 1 and found[0].step >= 3:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    finally:
        process.kill()
    found = read_state(killed)
    assert found is not None
    assert not (killed / "model.safetensors").exists()
    train(LONG, killed, runtime=QUIET)
    train(LONG, tmp_path / "whole", runtime=QUIET)
    assert weights(killed) == weights(tmp_path / "whole")
    assert not (killed / "state").exists()
    log = [json.loads(line) for line in (killed / "log.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in log] == list(range(6))


@pytest.mark.parametrize("number", [3, 8, 9, 13])
def test_an_interrupted_run_resumes_and_ends_with_the_same_bits(tmp_path, monkeypatch, number):
    config = small(accumulate=2)
    # Ignored where the tests run in the background of a script.
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        stop_at(patched, number, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", runtime=QUIET)
    assert read_state(tmp_path / "stopped") is not None
    assert signal.getsignal(signal.SIGINT) is handler
    train(config, tmp_path / "stopped", runtime=QUIET)
    train(config, tmp_path / "whole", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    logs = [[entry["loss"] for entry in read_log(tmp_path / name)] for name in ("stopped", "whole")]
    assert logs[0] == logs[1]


def test_the_time_of_an_epoch_includes_what_it_took_before_an_interruption(tmp_path, monkeypatch):
    config = small(PLAIN, epochs=3)
    with monkeypatch.context() as patched:
        stop_at(patched, 12, interrupt)  # in the second of three epochs of eight steps
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path, runtime=QUIET)
    found = read_state(tmp_path)
    assert found is not None
    position, tensors = found
    assert (position.epoch, position.step) == (1, 4)
    assert 0 < position.epoch_seconds < 100
    write_state(tmp_path, dataclasses.replace(position, epoch_seconds=1000.0), tensors)
    train(config, tmp_path, runtime=QUIET)
    seconds = [entry["seconds"] for entry in read_log(tmp_path)]
    assert [1000 < found < 1100 for found in seconds] == [False, True, False]


@pytest.mark.parametrize("number", [4, 10, 14])
def test_an_ensemble_resumes_at_the_member_it_was_stopped_in(tmp_path, monkeypatch, number):
    config = small(method="deep_ensemble", method_overrides={"num_members": 2}, epochs=1)
    config = small(config, epochs=2, batch_size=128)
    with monkeypatch.context() as patched:
        stop_at(patched, number, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", runtime=QUIET)
    found = read_state(tmp_path / "stopped")
    assert found is not None
    steps_per_stage = 2 * (517 // 128)
    assert found[0].stage == (number - 1) // steps_per_stage
    train(config, tmp_path / "stopped", runtime=QUIET)
    train(config, tmp_path / "whole", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_method_with_inducing_points_resumes_to_the_same_bits(tmp_path, monkeypatch):
    config = small(method="due", method_overrides={}, epochs=2, batch_size=128, label_smoothing=0.0)
    with monkeypatch.context() as patched:
        stop_at(patched, 5, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", runtime=QUIET)
    train(config, tmp_path / "stopped", runtime=QUIET)
    train(config, tmp_path / "whole", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_compiled_augmentation_resumes_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: None)
    config = small(PLAIN, augment=AugmentConfig(crop="shift", mixup_alpha=0.5), epochs=2)
    compiled = dataclasses.replace(QUIET, compile=True)
    with monkeypatch.context() as patched:
        stop_at(patched, 5, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", runtime=compiled)
    torch.compiler.reset()  # as a new process begins
    train(config, tmp_path / "stopped", runtime=compiled)
    train(config, tmp_path / "whole", runtime=compiled)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def poison_loss(step: OptimizerStep) -> None:
    step.totals += torch.nan


def poison_weight(step: OptimizerStep) -> None:
    step.parameters[0].data.flatten()[0] = torch.inf


def poison_from(monkeypatch, number: int, poison) -> None:
    """Call `poison` after every optimizer step behind the one with this number."""
    step = OptimizerStep.__call__

    def poisoned(self, pieces):
        step(self, pieces)
        poison(self)

    stop_at(monkeypatch, number, lambda: monkeypatch.setattr(OptimizerStep, "__call__", poisoned))


@pytest.mark.parametrize(
    ("poison", "what"),
    [(poison_loss, "the loss is not finite"), (poison_weight, "a weight is not finite")],
)
def test_what_is_no_number_stops_the_run_and_keeps_the_last_state(
    tmp_path, monkeypatch, poison, what
):
    config = small(PLAIN, epochs=2)
    with monkeypatch.context() as patched:
        poison_from(patched, 9, poison)
        with pytest.raises(TrainingDivergedError, match=f"{what}.*is kept in"):
            train(config, tmp_path / "stopped", runtime=EVERY_STEP)
    found = read_state(tmp_path / "stopped")
    assert found is not None
    assert all(value.isfinite().all() for value in found[1].values() if value.is_floating_point())
    train(config, tmp_path / "stopped", runtime=QUIET)
    train(config, tmp_path / "whole", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_run_that_diverged_after_its_first_epochs_sends_on_to_another_folder(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        poison_from(patched, 9, poison_loss)
        words = r"No state had been written yet\. Start a new run in another folder"
        with pytest.raises(TrainingDivergedError, match=words):
            train(small(PLAIN, epochs=3), tmp_path, runtime=QUIET)
    assert read_log(tmp_path)
    with pytest.raises(ConfigError, match="or another folder for a new run"):
        train(small(PLAIN, epochs=3, lr=1e-4), tmp_path, runtime=QUIET)


def test_an_interruption_after_the_last_step_is_not_forgotten(tmp_path, monkeypatch):
    train(small(epochs=1), tmp_path / "whole", runtime=QUIET)
    validate = Training._validate

    def interrupted(self):
        interrupt()
        return validate(self)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "_validate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(small(epochs=1), tmp_path / "stopped", runtime=QUIET)
    train(small(epochs=1), tmp_path / "stopped", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_two_processes_do_not_train_in_one_folder(tmp_path, monkeypatch):
    stop_at(monkeypatch, 2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(small(epochs=1), tmp_path, runtime=EVERY_STEP)
    monkeypatch.undo()
    with sole_process(tmp_path), pytest.raises(ConfigError, match="another process trains in"):
        train(small(epochs=1), tmp_path, runtime=QUIET)
    train(small(epochs=1), tmp_path, runtime=QUIET)
    assert not (tmp_path / ".training.lock").exists()


def test_an_absurd_learning_rate_is_a_clear_stop(tmp_path):
    config = small(PLAIN, name="sgd", lr=1e30, clip_norm=None, warmup_epochs=0.0)
    with pytest.raises(
        TrainingDivergedError,
        match=r"No state had been written yet\. Start a new run with a smaller lr",
    ):
        train(config, tmp_path, runtime=QUIET)
    assert not (tmp_path / "model.safetensors").exists()
    train(small(PLAIN, epochs=1), tmp_path, runtime=QUIET)  # nothing there stands against it


def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, monkeypatch):
    config = small(PLAIN, epochs=2)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        stop_at(patched, 9, lambda: patched.setattr("os.fsync", full))
        with pytest.raises(RunFileError, match="No space left on device"):
            train(config, tmp_path / "full", runtime=EVERY_STEP)
    train(config, tmp_path / "full", runtime=QUIET)
    train(config, tmp_path / "whole", runtime=QUIET)
    assert weights(tmp_path / "full") == weights(tmp_path / "whole")


def test_a_run_that_was_stopped_between_its_last_files_is_finished(tmp_path, monkeypatch):
    config = small(epochs=1)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("lrformer.training.running.write_decision", stop)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", runtime=QUIET)
    assert (tmp_path / "stopped" / "model.safetensors").is_file()
    train(config, tmp_path / "stopped", runtime=QUIET)
    train(config, tmp_path / "whole", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_state_that_an_interruption_left_behind_is_no_obstacle(tmp_path):
    config = small(epochs=1)
    train(config, tmp_path, runtime=QUIET)
    before = weights(tmp_path)
    state = tmp_path / "state" / "training.safetensors"

    def leave_state():
        state.parent.mkdir()
        state.write_bytes(b"left")

    leave_state()
    train(config, tmp_path, runtime=QUIET)
    assert not state.exists()
    leave_state()
    (tmp_path / "posterior.safetensors").unlink()
    train(config, tmp_path, runtime=QUIET)
    assert not state.exists()
    assert weights(tmp_path) == before


def test_a_folder_with_other_settings_is_left_alone(tmp_path):
    train(small(PLAIN, epochs=1), tmp_path, runtime=QUIET)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=r"other settings: optimizer\.lr is 0\.003 .* 0\.1 here"):
        train(small(PLAIN, epochs=1, lr=0.1), tmp_path, runtime=QUIET)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"not empty and has no config\.json"):
        train(SMALL, tmp_path, runtime=QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_a_crash_left_of_the_first_write_is_no_obstacle(tmp_path):
    (tmp_path / ".config.json.a1b2c3").write_text("{")
    train(small(PLAIN, epochs=1), tmp_path, runtime=QUIET)
    assert (tmp_path / "metrics.json").is_file()


def test_a_damaged_state_is_named(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_at(patched, 3, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(SMALL, tmp_path, runtime=QUIET)
    path = tmp_path / "state" / "training.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"training\.safetensors is not a safetensors file"):
        train(SMALL, tmp_path, runtime=QUIET)


def test_a_run_goes_on_from_another_directory_and_where_its_data_have_moved(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        np.save(
            tmp_path / "data" / f"{split}-x.npy", draw.integers(0, 255, (96, 8, 8, 1), np.uint8)
        )
        np.save(tmp_path / "data" / f"{split}-y.npy", np.repeat(np.arange(4), 24))
    monkeypatch.chdir(tmp_path)
    run = train(small(PLAIN, data="data", classes=None, epochs=1), "run", runtime=QUIET)
    assert run.config.train.data == str(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before = weights(tmp_path / "run")
    again = small(PLAIN, data="../data", classes=None, epochs=1)
    assert train(again, "../run", runtime=QUIET).config == run.config
    shutil.move(tmp_path / "data", tmp_path / "moved")
    moved = small(PLAIN, data="../moved", classes=None, epochs=1)
    assert train(moved, "../run", runtime=QUIET).config == run.config
    assert weights(tmp_path / "run") == before
    # Another folder with the same training set is not where it has moved to, as long as the first is there.
    shutil.copytree(tmp_path / "moved", tmp_path / "data")
    with pytest.raises(ConfigError, match=r"other settings: data is"):
        train(moved, "../run", runtime=QUIET)
    shutil.rmtree(tmp_path / "data")
    np.save(tmp_path / "moved" / "train-x.npy", draw.integers(0, 255, (96, 8, 8, 1), np.uint8))
    (tmp_path / "moved" / "train.json").unlink()
    with pytest.raises(ConfigError, match=r"run belongs to a run"):
        train(moved, "../run", runtime=QUIET)


def test_a_folder_that_another_process_has_claimed_meanwhile_is_not_trained_in(
    tmp_path, monkeypatch
):
    config = small(PLAIN, epochs=1)

    def claim_too(*args, **kwargs):
        there = read_run_config(tmp_path)
        other = dataclasses.replace(there, train=dataclasses.replace(there.train, seed=9))
        claim_folder(tmp_path, other)
        return training_batches(*args, **kwargs)

    monkeypatch.setattr(running, "training_batches", claim_too)
    with pytest.raises(ConfigError, match="belongs to a run with other settings: seed is 9"):
        train(config, tmp_path, runtime=QUIET)
    assert read_run_config(tmp_path).train.seed == 9
    assert not (tmp_path / "log.jsonl").exists()


def test_a_run_that_another_process_has_finished_meanwhile_is_loaded_and_keeps_its_metrics(
    tmp_path, monkeypatch
):
    config = small(PLAIN, epochs=2)

    def while_another_finishes(*args, **kwargs):
        monkeypatch.setattr(running, "training_batches", training_batches)
        train(config, tmp_path, runtime=QUIET)
        update_metrics(tmp_path, "evaluation", {"accuracy": 0.5})
        return training_batches(*args, **kwargs)

    monkeypatch.setattr(running, "training_batches", while_another_finishes)
    run = train(config, tmp_path, runtime=QUIET)
    assert run.path == tmp_path
    assert read_metrics(tmp_path)["evaluation"] == {"accuracy": 0.5}
    assert len(read_log(tmp_path)) == 2
