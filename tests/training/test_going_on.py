"""What a run that was interrupted says when it goes on."""

import dataclasses

import pytest

from lrformer.core import ConfigError
from lrformer.training import running, train
from tests.training.interruption import interrupt, stop_at
from tests.training.small import PLAIN, QUIET, small, weights

SHOWN = dataclasses.replace(QUIET, quiet=False)


def test_a_run_that_goes_on_says_where(tmp_path, monkeypatch, capsys):
    ensemble = {"method": "deep_ensemble", "method_overrides": {"num_members": 2}}
    config = small(**ensemble, epochs=2, batch_size=128)  # four steps an epoch, eight a member
    for number, words in (
        (4, "going on after the last step of member 1/2, epoch 1\n"),
        (8, "going on at member 2/2, epoch 2, step 2\n"),
    ):
        with monkeypatch.context() as patched:
            stop_at(patched, number, interrupt)
            with pytest.raises(KeyboardInterrupt):
                train(config, tmp_path, runtime=QUIET)
        with monkeypatch.context() as patched:
            stop_at(patched, 1, interrupt)
            with pytest.raises(KeyboardInterrupt):
                train(config, tmp_path, runtime=SHOWN)
        assert words in capsys.readouterr().err


def test_a_run_that_was_stopped_after_training_says_that_nothing_is_lost(
    tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as patched:
        patched.setattr(running, "fit_decision", _stop)
        with pytest.raises(KeyboardInterrupt):
            train(small(epochs=1), tmp_path, runtime=QUIET)
    train(small(epochs=1), tmp_path, runtime=SHOWN)
    said = capsys.readouterr().err
    assert "training is finished; going on with posterior, temperature and threshold\n" in said
    assert "going on at" not in said


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_classes_by_number_go_on_as_their_text_and_other_classes_do_not(tmp_path):
    config = small(PLAIN, epochs=1, classes=(0, 1, 2))
    train(config, tmp_path, runtime=QUIET)
    before = weights(tmp_path)
    train(dataclasses.replace(config, classes=("0", "1", "2")), tmp_path, runtime=QUIET)
    assert weights(tmp_path) == before
    with pytest.raises(ConfigError, match="classes"):
        train(dataclasses.replace(config, classes=("0", "1", "3")), tmp_path, runtime=QUIET)
