"""What TensorBoard shows of a run is what its log says, however often the run was stopped."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from lrformer.training import train
from lrformer.training.journal import Journal, read_log
from tests.training.interruption import interrupt, stop_at
from tests.training.small import PLAIN, QUIET, SMALL, small

BOARD = dataclasses.replace(QUIET, tensorboard=True)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return every scalar that TensorBoard finds in a run, as (step, value)."""
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what the log says, as TensorBoard should show it: in single precision."""
    expected: dict[str, list[tuple[int, float]]] = {}
    for entry in read_log(folder):
        for name, value in entry.items():
            if value is not None and name not in ("stage", "epoch"):
                place = expected.setdefault(f"stage{entry['stage']}/{name}", [])
                place.append((entry["epoch"], float(np.float32(value))))
    return expected


def test_tensorboard_shows_what_the_log_says(tmp_path):
    train(SMALL, tmp_path, runtime=BOARD)
    shown = scalars(tmp_path)
    assert shown == logged(tmp_path)
    for name in ("loss", "accuracy", "lr", "val_accuracy", "val_logit_norm"):
        assert [step for step, _ in shown[f"stage0/{name}"]] == [0, 1, 2], name


@pytest.mark.parametrize("number", [6, 8, 9])
def test_a_resumed_run_repeats_no_step_in_tensorboard_and_loses_none(tmp_path, monkeypatch, number):
    config = small(PLAIN, epochs=2)  # eight steps an epoch
    closed = []
    with monkeypatch.context() as patched:
        stop_at(patched, number, interrupt)
        patched.setattr(SummaryWriter, "close", lambda writer: closed.append(writer.file_writer))
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path, runtime=BOARD)
    assert len(closed) == 1
    closed[0].close()
    train(config, tmp_path, runtime=BOARD)
    shown = scalars(tmp_path)
    assert [step for step, _ in shown["stage0/loss"]] == [0, 1]
    assert shown == logged(tmp_path)


def test_events_that_a_killed_run_is_about_to_repeat_are_dropped(tmp_path):
    """The state is older than the log here: a run that was killed after the epoch's line, before its state."""
    entries = [{"stage": 0, "epoch": epoch, "loss": 2.0 - epoch} for epoch in range(3)]
    killed = Journal(tmp_path, position=(0, 0), is_tensorboard=True)
    for entry in entries:
        killed.append(entry)
    killed.close()
    resumed = Journal(tmp_path, position=(0, 1), is_tensorboard=True)
    resumed.append({"stage": 0, "epoch": 1, "loss": 0.5})
    resumed.close()
    assert scalars(tmp_path) == {"stage0/loss": [(0, 2.0), (1, 0.5)]}


def test_a_run_that_began_without_tensorboard_shows_its_first_epochs_too(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps({"stage": 0, "epoch": 0, "loss": 3.0}) + "\n")
    journal = Journal(tmp_path, position=(0, 1), is_tensorboard=True)
    journal.append({"stage": 0, "epoch": 1, "loss": 2.0, "accuracy": None})
    journal.close()
    assert scalars(tmp_path) == {"stage0/loss": [(0, 3.0), (1, 2.0)]}


def test_a_line_in_another_encoding_is_left_out(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b'{"epoch": 0}\n\xff\xfe\n{"epoch": 1}\n')
    assert read_log(tmp_path) == [{"epoch": 0}, {"epoch": 1}]


@pytest.mark.parametrize("line", ['{"stage": null, "epoch": 0}', '{"epoch": "0"}', '{"stage": 0}'])
def test_a_line_that_is_of_no_epoch_is_left_out(tmp_path, line):
    (tmp_path / "log.jsonl").write_text(f'{line}\n{{"epoch": 1}}\n')
    assert read_log(tmp_path) == [{"epoch": 1}]
    assert Journal(tmp_path, position=(0, 2)).entries == [{"epoch": 1}]
