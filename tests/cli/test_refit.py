"""`lrformer refit` as a person uses it: what is printed, and what is refused before anything is written."""

import re
import shutil
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from lrformer.cli.main import app, main
from lrformer.training import load_run, train
from tests.training.small import QUIET, small, weights

FITTED = {"head": "fitted", "feature_scale": "calibrate", "num_random_features": 64}
LONG = ["--method-option", "length_scale=4", "--method-option", "choose_length_scale=true"]
FACTOR = ["--method-option", "mean_field_factor=3"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "source"
    train(small(method_overrides=FITTED, epochs=1), folder, runtime=QUIET)
    return folder


def invoke(*words):
    return CliRunner().invoke(app, ["refit", *map(str, words), "--device", "cpu"])


def test_a_run_is_fitted_anew_and_its_worth_is_said_in_one_line(source, tmp_path):
    before, out = weights(source), tmp_path / "new"
    result = invoke(source, "--out", out, *LONG)
    assert result.exit_code == 0, result.output
    worth = r"validation accuracy \d+\.\d\d%, nll \S+, ece \S+; temperature \S+, entropy threshold"
    assert re.fullmatch(rf"{re.escape(str(out))}: {worth} \S+\n", result.stdout)
    assert result.stderr.startswith(f"the weights of {source}: posterior, temperature and")
    asked = {**FITTED, "length_scale": 4, "choose_length_scale": True}
    assert load_run(out).config.train == small(method_overrides=asked, epochs=1)
    train(small(method_overrides=asked, epochs=1), tmp_path / "anew", runtime=QUIET)
    assert weights(out) == weights(tmp_path / "anew") != before == weights(source)
    again = invoke(source, "--out", out, *LONG)
    assert again.output == result.stdout


def test_the_threshold_may_have_another_score_and_accept_another_share(source, tmp_path):
    result = invoke(
        source, "--out", tmp_path / "one", "--true-positive-rate", 0.7, "--score", "msp"
    )
    assert result.exit_code == 0, result.output
    assert "msp threshold" in result.stdout
    decision = load_run(tmp_path / "one").decision
    assert (decision.score, decision.true_positive_rate) == ("msp", 0.7)
    result = invoke(tmp_path / "one", "--out", tmp_path / "two", *FACTOR)
    assert load_run(tmp_path / "two").decision.score == "msp"
    result = invoke(source, "--out", tmp_path / "three", "--score", "chosen")
    assert re.search(r"score '(\w+)' finds outliers .* \1 threshold", result.output, re.DOTALL)


def test_prepared_data_may_have_moved_and_a_refitted_run_may_be_refitted(source, tmp_path):
    moved = tmp_path / "moved"
    assert invoke(source, "--out", tmp_path / "new", *LONG, "--root", moved).exit_code == 0
    assert load_run(tmp_path / "new").config.train.root == str(moved)
    back = ["--method-option", "choose_length_scale=false", "--method-option", "length_scale=2"]
    assert invoke(tmp_path / "new", "--out", tmp_path / "back", *back).exit_code == 0
    assert weights(tmp_path / "back") == weights(source)
    assert load_run(tmp_path / "back").config.train.root == str(moved)


def test_of_data_that_have_moved_the_place_is_named_and_their_content_is_compared(
    tmp_path, monkeypatch
):
    old, new, out = tmp_path / "old", tmp_path / "new", tmp_path / "out"
    old.mkdir()
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        np.save(old / f"{split}-x.npy", draw.integers(0, 255, (96, 8, 8, 1), np.uint8))
        np.save(old / f"{split}-y.npy", np.repeat(np.arange(4), 24))
    config = small(data=str(old), classes=None, method_overrides=FITTED, epochs=1)
    train(config, tmp_path / "run", runtime=QUIET)
    shutil.move(old, new)
    refused = invoke(tmp_path / "run", "--out", out, *FACTOR)
    assert f"no longer in {old}; name the place where they lie now with --data" in str(
        refused.exception
    )
    monkeypatch.chdir(tmp_path)
    result = invoke(tmp_path / "run", "--out", out, *FACTOR, "--data", "new")
    assert result.exit_code == 0, result.output
    assert load_run(out).config.train.data == str(new)
    np.save(new / "train-x.npy", draw.integers(0, 255, (96, 8, 8, 1), np.uint8))
    (new / "train.json").unlink()
    other = invoke(tmp_path / "run", "--out", tmp_path / "other", *FACTOR, "--data", new)
    assert "were trained on other data" in str(other.exception)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--method-option", "length_scael=4"], "Did you mean 'length_scale'"),
        (["RUN", "--method-option", "length_scale"], "NAME=VALUE"),
        (["RUN", "--method-option", "length_scale=-1"], "length_scale (-1) must be positive"),
        (["RUN", "--method-option", "length_scale=abc"], "length_scale ('abc') must be a number"),
        (["RUN", "--method-option", "spectral_bound=abc"], "must be a number, or null"),
        (["RUN", "--method-option", "head=gp"], "method_overrides.head is 'fitted' there and 'gp'"),
        (["RUN", "--method-option", "spectral_bound=3"], "spectral_bound is None there and 3 here"),
        (
            ["RUN", "--method-option", "true_positive_rate=0.99"],
            "true_positive_rate is no setting of the method; give it as --true-positive-rate 0.99.",
        ),
        (["RUN", "--method-option", "score=energy"], "give it as --score energy."),
        (["RUN", "--true-positive-rate", "99"], "at most 1; 0.99 accepts 99%"),
        (["RUN", "--true-positive-rate", "0"], "must be above 0"),
        (["RUN", "--true-positive-rate", "0.95"], "no setting differs from those of"),
        (["RUN", "--score", "enrgy"], "Did you mean 'energy'"),
        (["RUN", "--score", "kernel_distance"], "is not given by method 'lrformer' with these"),
        (["nowhere", "--method-option", "length_scale=4"], "nowhere is not the folder of a run"),
        (["RUN", *LONG, "--device", "gpu"], "device"),
        (["RUN"], "no setting differs from those of"),
        (["RUN", "--method-option", "head=fitted"], "no setting differs from those of"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two_and_makes_no_folder(
    source, tmp_path, monkeypatch, capsys, words, message
):
    given = [str(source) if word == "RUN" else word for word in words]
    arguments = ["lrformer", "refit", *given, "--out", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_the_folder_of_another_run_is_left_alone(source, tmp_path):
    result = invoke(source, "--out", source, *LONG)
    assert "belongs to a run with other settings" in str(result.exception)
    assert "length_scale" in str(result.exception)


def test_help_shows_an_example_and_where_defaults_come_from():
    shown = CliRunner().invoke(app, ["refit", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    words = " ".join(shown.output.split())
    assert "Example: lrformer refit runs/sngp --out runs/sngp-20" in words
    assert "as in the run" in words
    assert "default:" in words
