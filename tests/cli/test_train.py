import dataclasses
import os
import re
import signal
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lrformer import training
from lrformer.cli.main import app, main
from lrformer.cli.train_command import parse_options
from lrformer.core import ConfigError
from lrformer.data import preparation_lines
from lrformer.methods import METHODS
from lrformer.training import OptimizerConfig, TrainConfig, load_run
from lrformer.training.config import (
    DEFAULT_DECAYS,
    DEFAULT_RATES,
    LARGEST_DEFAULT_BATCH,
    RATE_OF_TRAINED,
    default_batch_size,
)
from lrformer.training.step import OptimizerStep
from tests.evaluation.made_run import write_image_folder

TINY = ["--model-option", "depth=1", "--model-option", "embed_dim=16"]
SMALL = [
    *TINY,
    *("--method-option", "num_random_features=32"),
    *("--classes", "0,1,2", "--device", "cpu", "--quiet"),
]


def run_main(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["lrformer", "train", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    code = stop.value.code
    return code if isinstance(code, int) else 0


def test_a_run_is_trained_and_its_worth_is_said(tmp_path):
    out = tmp_path / "run"
    options = ["digits", "--out", str(out), "--epochs", "1", "--lr", "0.002", *SMALL]
    result = CliRunner().invoke(app, ["train", *options])
    assert result.exit_code == 0, result.output
    assert re.search(r"validation accuracy \d+\.\d\d%", result.output)
    config = load_run(out).config.train
    assert (config.epochs, config.optimizer.lr, config.classes) == (1, 0.002, ("0", "1", "2"))
    assert config.model_overrides == {"patch_size": 4, "depth": 1, "embed_dim": 16}


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(tmp_path, monkeypatch):
    out = tmp_path / "run"
    arguments = ["digits", "--out", out, "--epochs", "1", "--batch-size", "64", *SMALL]
    step = OptimizerStep.__call__

    def interrupted(self, pieces):
        step(self, pieces)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(OptimizerStep, "__call__", interrupted)
        assert run_main(patched, *arguments) == 130
    assert (out / "state" / "training.safetensors").is_file()
    assert run_main(monkeypatch, *arguments) == 0
    assert load_run(out).class_names == ("0", "1", "2")


def test_files_that_cannot_be_decoded_are_left_out_where_that_is_asked_for(tmp_path):
    data = write_image_folder(tmp_path / "data")
    bad = data / "train" / "blue" / "004.png"
    for place in (bad, data / "train" / "red" / "001.png", data / "ood-gray" / "001.png"):
        place.write_bytes(b"no image")
    words = [str(data), "--out", str(tmp_path / "run"), "--root", str(tmp_path / "cache"), *TINY]
    words += ["--model", "lrformer_digits", "--epochs", "1", "--method", "deterministic"]
    words += ["--device", "cpu", "--channels", "3"]
    refused = CliRunner().invoke(app, ["train", *words])
    assert "--skip-unreadable" in str(refused.exception)
    result = CliRunner().invoke(app, ["train", *words, "--skip-unreadable"])
    assert result.exit_code == 0, result.output
    line = (
        f"warning: data/train: 2 of 60 images cannot be read and are left out, the first is {bad}\n"
    )
    assert result.stderr.count(line) == 1
    assert load_run(tmp_path / "run").config.train.skip_unreadable is True
    # Without the option again: that of the run is enough.
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--draws", "10"])
    assert result.exit_code == 0, result.output
    assert "data/ood-gray: 1 of 15 images cannot be read" in result.stderr


def test_several_seeds_make_several_runs(tmp_path):
    options = ["digits", "--out", str(tmp_path), "--epochs", "1", "--seeds", "2", *SMALL]
    result = CliRunner().invoke(app, ["train", *options])
    assert result.exit_code == 0, result.output
    assert [load_run(tmp_path / f"seed-{n}").config.train.seed for n in (0, 1)] == [0, 1]


def test_what_is_prepared_for_long_is_said_unless_it_is_to_be_quiet(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / "train" / kind).mkdir(parents=True)
        for number in range(8):
            pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / "train" / kind / f"{number}.png")
    monkeypatch.setattr(preparation_lines, "SECONDS_TO_FIRST_LINE", 0.0)
    options = ["--epochs", "1", "--method", "deterministic", "--device", "cpu"]
    for out, more in (("loud", []), ("quiet", ["--quiet"])):
        places = ["--out", str(tmp_path / out), "--root", str(tmp_path / f"{out}-cache")]
        words = ["train", str(tmp_path / "pets"), *places, *TINY, *options, *more]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        said = "preparing image folder pets/train: 1 of 16 images\n"
        assert (said in result.stderr) == (out == "loud")
    assert result.stderr == ""


@pytest.fixture
def asked(monkeypatch) -> list[TrainConfig]:
    """Return a list of what is asked of the training, which itself is refused."""
    configs: list[TrainConfig] = []

    def refuse(config: TrainConfig, *_: object, **__: object) -> None:
        configs.append(config)
        raise ConfigError("not here")

    monkeypatch.setattr(training, "train", refuse)
    return configs


@pytest.mark.parametrize(
    ("options", "warmup"),
    [((), 5.0), (("--epochs", "2"), 0.2), (("--epochs", "2", "--warmup-epochs", "1"), 1.0)],
)
def test_a_recipe_of_fewer_epochs_has_a_warm_up_that_fits(
    tmp_path, monkeypatch, asked, options, warmup
):
    assert run_main(monkeypatch, "digits", "--recipe", "best", *options, "--out", tmp_path) == 2
    assert [config.warmup_epochs for config in asked] == [pytest.approx(warmup)]


@pytest.mark.parametrize("options", [(), ("--recipe", "best")])
def test_the_score_and_the_accepted_share_of_the_threshold_have_options(
    tmp_path, monkeypatch, options
):
    asked: list[TrainConfig] = []

    def refuse(config: TrainConfig, *_: object, **__: object) -> None:
        asked.append(config)
        raise ConfigError("not here")

    monkeypatch.setattr(training, "train", refuse)
    for more in ((), ("--true-positive-rate", ".99", "--score", "chosen")):
        assert run_main(monkeypatch, "digits", *options, *more, "--out", tmp_path) == 2
    assert [(config.true_positive_rate, config.score) for config in asked] == [
        (0.95, None),
        (0.99, "chosen"),
    ]


def test_what_has_an_option_of_its_own_is_no_option_of_the_method(tmp_path, monkeypatch, capsys):
    words = ["--method-option", "true_positive_rate=0.99", "--out", tmp_path / "run"]
    assert run_main(monkeypatch, "digits", *words) == 2
    assert "give it as --true-positive-rate 0.99" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "decay"), [((), 0.999), (("--ema", "0"), None), (("--ema", ".5"), 0.5)]
)
def test_the_average_of_a_recipe_can_be_changed_and_switched_off(
    tmp_path, monkeypatch, asked, options, decay
):
    assert run_main(monkeypatch, "digits", "--recipe", "best", *options, "--out", tmp_path) == 2
    assert [config.ema_decay for config in asked] == [decay]


def with_options(*settings: str) -> list[str]:
    """Return settings of the method as the command line has them."""
    return [part for setting in settings for part in ("--method-option", setting)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6", 6), ("+6", 6), ("0.5", 0.5), (".5", 0.5), ("-.5", -0.5), ("5.", 5.0), ("1.e-3", 0.001),
        ("true", True), ("True", True), ("False", False), ("null", None), ("[8,16]", [8, 16]),
        ("m", "m"), ("1.2.3", "1.2.3"), ("e5", "e5"), (".", "."), ("", ""),
    ],
)  # fmt: skip
def test_a_value_is_read_as_people_write_it(text, value):
    (found,) = parse_options([f"name={text}"], "--model-option").values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digist"], "Did you mean 'digits'"),
        (["digits", "--method", "lrforme"], "Did you mean 'lrformer'"),
        (["digits", "--model", "lrformer_digit"], "Did you mean 'lrformer_digits'"),
        (["digits", "--optimizer", "adam"], "Did you mean 'adamw'"),
        (["digits", "--augment", "stong"], "Did you mean 'strong'"),
        (["digits", "--recipe", "dept6"], "Did you mean 'depth6'"),
        (["digits", "--recipe", "best_gp", "--method", "due"], "must be 'lrformer' or 'dnn_gp'"),
        (["digits", "--model-option", "depth"], "NAME=VALUE"),
        (["digits", "--channels", "2"], "channels (2) must be 1 (gray) or 3 (RGB)."),
        (["digits", "--skip-unreadable"], "skip_unreadable is for a folder of image files"),
        (["digits", "--seed", "-1"], "seed (-1) must lie in 0.."),
        (["digits", "--model-option", "depth=six"], "depth ('six') must be a whole number"),
        (["digits", "--epochs", "2", "--warmup-epochs", "3"], "left out it is a tenth of them"),
        (["digits", "--model", "certified_digits"], "--method deterministic"),
        (["digits", "--attention", "dot_product"], "--method deterministic"),
        (["digits", "--model", "lrformer_digits", "--from", "vit_tiny_patch16_224"], "two models"),
        (["digits", "--from", "runs/nowhere"], "start ('runs/nowhere') is no folder"),
        (
            ["digits", *with_options("head=linear", "temperature_by_variance=true")],
            "temperature_by_variance needs a variance",
        ),
        (["digits", "--method", "due", "--method-option", "num_samples=0"], "num_samples (0) must"),
    ],
)
def test_a_wrong_name_is_one_line_and_exit_code_two(
    tmp_path, monkeypatch, capsys, arguments, message
):
    assert run_main(monkeypatch, *arguments, "--out", tmp_path / "run", "--quiet") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_help_shows_the_defaults_of_the_config_and_an_example():
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).output
    options = {text.split()[0]: " ".join(text.split()) for text in re.split(r"\n  (?=--)", shown)}
    assert "lrformer train digits" in shown
    assert all(re.search(rf"\b{name}\b", shown) for name in METHODS)
    defaults = {
        field.name: field.default
        for config in (TrainConfig, OptimizerConfig)
        for field in dataclasses.fields(config)
    }
    rates = f"{DEFAULT_RATES['adamw']} (sgd {DEFAULT_RATES['sgd']}, muon {DEFAULT_RATES['muon']})"
    assert f"[default: ({rates}; {RATE_OF_TRAINED} of it from trained" in options["--lr"]
    decays = f"{DEFAULT_DECAYS['adamw']} (sgd {DEFAULT_DECAYS['sgd']})"
    assert f"[default: ({decays})]" in options["--weight-decay"]
    for name in ("epochs", "clip_norm", "accumulate", "keep", "class_weights"):
        assert f"[default: ({defaults[name]})]" in options[f"--{name.replace('_', '-')}"]
    for name in ("method", "loss", "label_smoothing", "val_fraction"):
        assert f"[default: ({defaults[name]})]" in " ".join(options.values())
    words = f"[default: ({LARGEST_DEFAULT_BATCH}, less on fewer than 4,096 images"
    assert words in options["--batch-size"]
    assert default_batch_size(4096) == LARGEST_DEFAULT_BATCH > default_batch_size(4095)
