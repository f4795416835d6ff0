"""The best epoch is kept where it is asked for, also through an interruption; what overfits is said to."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError
from lrformer.training import RuntimeConfig, load_run, train
from lrformer.training.best_epoch import BestEpoch, describe_overfitting, kept_epochs
from lrformer.training.journal import read_log
from lrformer.training.metrics_file import read_training
from lrformer.training.refit import training_of
from tests.processes import run_together
from tests.training.interruption import interrupt, stop_at
from tests.training.small import PLAIN, QUIET, small, weights
from tests.training.test_processes import run_process

# The rate rises until the weights are thrown about, so that the last epoch is not the best.
WILD = small(PLAIN, epochs=5, lr=1.0, warmup_epochs=4.9, keep="best")


def test_the_weights_of_the_best_epoch_are_kept(tmp_path):
    run = train(WILD, tmp_path / "best", runtime=QUIET)
    log = read_log(run.path)
    losses = [entry["val_nll_calibrated"] for entry in log]
    best = int(np.argmin(losses))
    assert best < 4, "the last epoch was the best; the test needs a wilder training"
    found = read_training(run.path)
    assert found["kept_epochs"] == kept_epochs(run.path) == [best + 1]
    assert found["validation_calibrated"]["nll"] == pytest.approx(losses[best], rel=1e-4)
    assert found["validation"]["nll"] == pytest.approx(log[best]["val_nll"], rel=1e-5)
    last = train(dataclasses.replace(WILD, keep="last"), tmp_path / "last", runtime=QUIET)
    assert read_training(last.path)["validation"]["nll"] == pytest.approx(
        log[-1]["val_nll"], rel=1e-5
    )
    assert "kept_epochs" not in read_training(last.path)
    # The training itself is the same.
    assert [e["loss"] for e in read_log(last.path)] == [e["loss"] for e in log]


def test_every_epoch_is_looked_at_however_seldom_that_was_asked_for(tmp_path):
    seldom = dataclasses.replace(QUIET, validate_every=4)
    run = train(WILD, tmp_path / "seldom", runtime=seldom)
    assert all("val_nll_calibrated" in entry for entry in read_log(run.path))
    assert weights(run.path) == weights(train(WILD, tmp_path / "often", runtime=QUIET).path)


@pytest.mark.parametrize("ema_decay", [None, 0.9])
def test_an_interrupted_run_keeps_the_same_epoch_to_the_bit(tmp_path, monkeypatch, ema_decay):
    dropped = {"head_drop_rate": 0.2}
    config = dataclasses.replace(
        WILD, ema_decay=ema_decay, method="mc_dropout", method_overrides=dropped
    )
    train(config, tmp_path / "whole", runtime=QUIET)
    for steps in (28, 10):  # of 40: in the fourth epoch, then in the fifth
        with monkeypatch.context() as patched:
            stop_at(patched, steps, interrupt)
            with pytest.raises(KeyboardInterrupt):
                train(config, tmp_path / "stopped", runtime=QUIET)
    train(config, tmp_path / "stopped", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_every_member_of_an_ensemble_keeps_its_own_epoch(tmp_path):
    config = dataclasses.replace(WILD, method="deep_ensemble", method_overrides={"num_members": 2})
    run = train(config, tmp_path / "run", runtime=QUIET)
    kept = read_training(run.path)["kept_epochs"]
    assert len(kept) == 2
    for member, epoch in enumerate(kept):
        looks = [e["val_nll_calibrated"] for e in read_log(run.path) if e["stage"] == member]
        assert epoch == int(np.argmin(looks)) + 1


def test_processes_keep_the_epoch_that_one_keeps(tmp_path):
    config = dataclasses.replace(WILD, batch_size=64)
    run_together(run_process, tmp_path / "two", config)
    losses = [entry["val_nll_calibrated"] for entry in read_log(tmp_path / "two")]
    found = read_training(tmp_path / "two")
    assert found["kept_epochs"] == [int(np.argmin(losses)) + 1]
    assert found["validation_calibrated"]["nll"] == pytest.approx(min(losses), rel=1e-4)


def test_a_refitted_run_has_the_weights_and_the_epoch_of_the_first(tmp_path):
    first = train(WILD, tmp_path / "first", runtime=QUIET)
    again = dataclasses.replace(load_run(first.path).config.train, true_positive_rate=0.9)
    assert training_of(again) == training_of(load_run(first.path).config.train)
    second = train(again, tmp_path / "second", runtime=QUIET, weights_of=first.path)
    assert read_training(second.path)["kept_epochs"] == read_training(first.path)["kept_epochs"]


def test_of_epochs_that_are_alike_the_first_is_kept_and_a_copy_is_no_view():
    layer = torch.nn.Linear(2, 2)
    best = BestEpoch()
    best.look(layer, nll=1.0, epoch=1)
    kept = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1)
    best.look(layer, nll=1.0, epoch=2)
    assert best.epoch == 1
    best.put_back(layer)
    assert torch.equal(layer.weight, kept)
    again = BestEpoch()
    again.load(best.tensors())
    assert (again.nll, again.epoch) == (1.0, 1)


def test_a_rising_validation_loss_is_said_at_the_end(tmp_path, capsys):
    loud = RuntimeConfig(device="cpu")
    entries = [{"stage": 0, "epoch": k, "val_nll": nll} for k, nll in enumerate((1.0, 0.5, 0.61))]
    for last, is_said in ((entries, True), (entries[:2], False), ([], False)):
        (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in last))
        line = describe_overfitting(PLAIN, tmp_path, {"nll": 0.55})
        assert (line is not None) == is_said
        if line is not None:
            assert (
                "lowest after epoch 2 (0.5000) and is 0.6100 now, 0.5500 after the temperature"
                in line
            )
        assert describe_overfitting(WILD, tmp_path, {"nll": 0.55}) is None
    train(small(PLAIN, epochs=40, lr=3e-3, label_smoothing=0.0), tmp_path / "run", runtime=loud)
    losses = [entry["val_nll"] for entry in read_log(tmp_path / "run")]
    is_risen = losses[-1] > 1.2 * min(losses)
    assert ("it has overfitted" in capsys.readouterr().err) == is_risen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": "bst"}, "unknown keep 'bst'. Did you mean 'best'"),
        ({"class_weights": "equal"}, "unknown class_weights 'equal'. .*none, balanced"),
    ],
)
def test_a_wrong_word_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        small(PLAIN, **changes)
