import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from torch import distributed
from typer.testing import CliRunner

import lrformer
from lrformer.cli.main import app, main
from lrformer.core.processes import leave_group
from lrformer.heads import FlatVarianceWarning

SOURCE = Path(lrformer.__file__).parent.parent


def run_module(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the package from its sources, as from a plain checkout that nobody installed."""
    return subprocess.run(
        [sys.executable, "-m", "lrformer", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "COLUMNS": "100", **environment},
        check=False,
    )


def test_the_version_is_shown_without_importing_torch():
    done = run_module("--version")
    assert (done.returncode, done.stdout) == (0, f"lrformer {lrformer.__version__}\n")
    probe = "import sys, lrformer.cli; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_importing_the_package_costs_far_less_than_a_second_and_no_heavy_package():
    probe = (
        "import time, torch; start = time.perf_counter(); import lrformer; lrformer.create_model;"
        "import sys; heavy = {'timm', 'transformers', 'torchvision', 'matplotlib', 'sklearn'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert time.perf_counter() - start < 1, time.perf_counter() - start"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_letters_that_a_stream_does_not_have_are_written_as_codes(tmp_path):
    probs = np.tile([[0.9, 0.1], [0.2, 0.8]], (8, 1))
    np.save(tmp_path / "probs.npy", probs)
    np.save(tmp_path / "labels.npy", np.tile([0, 1], 8))
    files = (str(tmp_path / "probs.npy"), str(tmp_path / "labels.npy"))
    done = run_module(
        "evaluate", "--arrays", *files, "--draws", "5", PYTHONIOENCODING="ascii", TERM="dumb"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Accuracy\\xa0\\u2191" in done.stdout


def test_models_lists_every_preset_with_its_size():
    result = CliRunner().invoke(app, ["models"])
    assert result.exit_code == 0
    assert "lrformer_small_patch16_224" in result.output
    assert "19,886,218" in result.output


def test_a_users_mistake_is_one_line_and_exit_code_two(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lrformer", "models", "lrformer_digit5"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error == (
        "lrformer: no model's name contains 'lrformer_digit5'. Did you mean 'lrformer_digits'?\n"
    )


def test_an_unknown_command_gets_exit_code_two_and_the_nearest_name():
    done = run_module("modles")
    assert done.returncode == 2
    assert "modles" in done.stderr


def test_every_promised_name_is_there():
    for name in lrformer.__all__:
        assert getattr(lrformer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'create_modle'"):
        lrformer.create_modle  # noqa: B018


def test_ctrl_c_is_one_line_and_exit_code_130(monkeypatch, capsys):
    def interrupt(pattern: str = "") -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lrformer.models.list_models", interrupt)
    monkeypatch.setattr(sys, "argv", ["lrformer", "models"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    error = capsys.readouterr().err
    assert "interrupted" in error
    assert "the demo goes on with the same command" in error


@pytest.mark.parametrize(
    ("stop", "is_left"), [(None, True), (KeyboardInterrupt, True), (ValueError, False)]
)
def test_the_group_of_processes_is_left_but_not_by_one_that_fails(monkeypatch, stop, is_left):
    """One that fails leaves it to the launcher to end the others, which wait for it in the group."""

    def fail(pattern: str = "") -> None:
        raise stop

    monkeypatch.setattr(sys, "argv", ["lrformer", "models"])
    if stop is not None:
        monkeypatch.setattr("lrformer.models.list_models", fail)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError if stop is ValueError else SystemExit):
            main()
        assert distributed.is_initialized() != is_left
    finally:
        leave_group()


def test_a_file_in_the_place_of_a_folder_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["lrformer", "demo", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("lrformer: ")


def test_a_picture_that_cannot_be_written_is_refused_before_measuring(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lrformer", "bounds", "lrformer_digits", "--figure", "b.xyz"])
    with pytest.raises(SystemExit):
        main()
    assert "must end in .png, .svg or .pdf" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["reproduce"], ["bench"]])
def test_every_command_is_listed_with_a_whole_line(words):
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).output
    commands = shown.partition("Commands:")[2]
    assert len(commands.split("\n")) > 3
    assert "..." not in commands


def test_no_option_is_cut_on_a_narrow_screen():
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "60"}).output
    for option in ("--label-smoothing", "--validate-every", "--no-pretrained", "deep_ensemble"):
        assert option in shown
    assert "…" not in shown


def test_a_warning_of_ours_is_one_line_without_a_place(monkeypatch, capsys):
    def warn():
        warnings.warn("the variance carries no distance", FlatVarianceWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)

    monkeypatch.setattr(sys.modules["lrformer.cli.main"], "app", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "lrformer: warning: the variance carries no distance"
    assert "UserWarning: something else" in lines[1]
