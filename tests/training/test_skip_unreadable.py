"""Runs on folders with files that cannot be decoded."""

import dataclasses

import pytest

from lrformer.core import ConfigError
from lrformer.evaluation import evaluate_run
from lrformer.training import RuntimeConfig, load_run, train
from lrformer.training.atomic_files import read_json, write_json
from lrformer.training.run_config import read_run_config
from lrformer.training.running import check_data
from lrformer.training.step import OptimizerStep
from tests.evaluation.made_run import write_image_folder
from tests.training.small import PLAIN, QUIET, small, weights


@pytest.fixture
def folder(tmp_path):
    return write_image_folder(tmp_path / "data")


def break_files(folder):
    for name in ("train/blue/003.png", "val/red/001.png", "test/green/000.png"):
        (folder / name).write_bytes(b"no image")


def asked(folder, **changes):
    settings = {"classes": None, "epochs": 2, "batch_size": 8, "skip_unreadable": True, **changes}
    return small(PLAIN, data=str(folder), root=str(folder.parent / "cache"), **settings)


def stop_at_second_step(monkeypatch):
    step, done = OptimizerStep.__call__, []

    def stop(self, pieces):
        done.append(pieces)
        if len(done) == 2:
            raise KeyboardInterrupt
        step(self, pieces)

    monkeypatch.setattr(OptimizerStep, "__call__", stop)


def test_a_run_without_the_files_goes_on_to_the_bit_and_is_evaluated_without_them(
    folder, tmp_path, monkeypatch, capsys
):
    break_files(folder)
    with pytest.raises(ConfigError, match="--skip-unreadable"):
        train(asked(folder, skip_unreadable=False), tmp_path / "run", runtime=QUIET)
    whole = train(asked(folder), tmp_path / "whole", runtime=QUIET)
    assert read_json(tmp_path / "whole" / "metrics.json")["training"]["num_train"] == 59
    eager = RuntimeConfig(device="cpu", quiet=True, save_seconds=0.0)
    with monkeypatch.context() as patch:
        stop_at_second_step(patch)
        with pytest.raises(KeyboardInterrupt):
            train(asked(folder), tmp_path / "run", runtime=eager)
    loud = dataclasses.replace(eager, quiet=False)
    run = train(asked(folder), tmp_path / "run", runtime=loud)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert run.config.data_digest == whole.config.data_digest
    results = evaluate_run(tmp_path / "run", device="cpu")
    assert len(results.test.labels) == 41
    said = capsys.readouterr().err
    for split, number in (("train", 60), ("val", 36), ("test", 42)):
        line = f"warning: data/{split}: 1 of {number} images cannot be read and are left out"
        assert said.count(line) == 1


def test_a_run_is_not_the_same_with_and_without_them(folder, tmp_path):
    train(asked(folder, epochs=1), tmp_path / "run", runtime=QUIET)
    with pytest.raises(ConfigError, match="skip_unreadable is True there and False here"):
        train(asked(folder, epochs=1, skip_unreadable=False), tmp_path / "run", runtime=QUIET)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_from_before_the_setting_opens_and_goes_on(
    folder, tmp_path, monkeypatch, is_finished
):
    config = asked(folder, skip_unreadable=False)
    eager = RuntimeConfig(device="cpu", quiet=True, save_seconds=0.0)
    with monkeypatch.context() as patch:
        if not is_finished:
            stop_at_second_step(patch)
            with pytest.raises(KeyboardInterrupt):
                train(config, tmp_path / "run", runtime=eager)
        else:
            train(config, tmp_path / "run", runtime=eager)
    place = tmp_path / "run" / "config.json"
    record = read_json(place)
    assert record["config"]["train"].pop("skip_unreadable") is False
    write_json(place, record)
    assert read_run_config(tmp_path / "run").train.skip_unreadable is False
    with pytest.raises(ConfigError, match="skip_unreadable is False there and True here"):
        train(asked(folder), tmp_path / "run", runtime=QUIET)
    train(config, tmp_path / "run", runtime=QUIET)
    assert len(evaluate_run(load_run(tmp_path / "run"), device="cpu").test.labels) == 42


def test_the_setting_is_refused_where_there_are_no_files(tmp_path):
    config = small(PLAIN, skip_unreadable=True)
    with pytest.raises(ConfigError, match="skip_unreadable is for a folder of image files"):
        train(config, tmp_path / "run", runtime=QUIET)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="skip_unreadable is for a folder of image files"):
        check_data(config)


def test_unknown_files_that_cannot_be_decoded_are_said_before_any_figure(folder, tmp_path):
    config = asked(folder, epochs=1, skip_unreadable=False)
    run = train(config, tmp_path / "run", runtime=QUIET)
    bad = folder / "ood-gray" / "002.png"
    bad.write_bytes(b"")
    copy = folder / "ood-copies" / "copy.png"
    copy.parent.mkdir()
    copy.write_bytes((folder / "train" / "blue" / "000.png").read_bytes())
    done: list[int] = []
    with pytest.raises(ConfigError) as refused:
        evaluate_run(run, advance=done.append)
    # Of every unknown set at once.
    assert f"{copy} (ood-copies) is the same image as" in str(refused.value)
    assert f"{bad}: not a readable image; replace it or remove it. Pass skip" in str(refused.value)
    assert done == []
    copy.unlink()
    copy.parent.rmdir()
    results = evaluate_run(run, skip_unreadable=True)
    assert {name: len(found.probs) for name, found in results.ood.items()} == {"ood-gray": 14}
    assert (len(results.test.labels), run.config.train.skip_unreadable) == (42, False)
    # What training prepared is not prepared again.
    assert len([*(tmp_path / "cache").iterdir()]) == 1


def test_another_folder_is_measured_without_the_files_where_the_run_was_trained_so(
    folder, tmp_path
):
    run = train(asked(folder, epochs=1), tmp_path / "run", runtime=QUIET)
    other = write_image_folder(tmp_path / "other")
    break_files(other)
    assert len(evaluate_run(run, data=f"{other}:test", ood=[]).test.labels) == 41
    plain = train(asked(folder, epochs=1, skip_unreadable=False), tmp_path / "plain", runtime=QUIET)
    with pytest.raises(ConfigError, match="not a readable image"):
        evaluate_run(plain, data=f"{other}:test", ood=[])
    results = evaluate_run(plain, data=f"{other}:test", ood=["digits"], skip_unreadable=True)
    assert len(results.test.labels) == 41
