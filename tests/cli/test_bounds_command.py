import json
from pathlib import Path

import pytest
import torch

from lrformer.cli.bounds_command import bounds, run_bounds
from lrformer.core import ConfigError
from lrformer.models import create_model
from lrformer.training import TrainConfig, train
from lrformer.training.atomic_files import RunFileError
from tests.recipes.made_table import QUIET, write_arrays


def test_the_command_prints_a_table_and_writes_record_and_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    model = create_model("lrformer_digits", depth=1)
    record, picture = tmp_path / "bounds.json", tmp_path / "bounds.png"
    report = run_bounds(
        model, torch.randn(2, 1, 8, 8), json_path=record, figure_path=picture, num_steps=2
    )
    printed = capsys.readouterr().out
    assert "blocks.0.attn" in printed
    assert "vacuous" in printed
    assert json.loads(record.read_text())["model"] == report.model
    assert picture.stat().st_size > 1000


def test_a_narrow_screen_has_the_reasons_below_the_table_and_keeps_names_and_figures(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    model = create_model("lrformer_hybrid_32", depth=1, embed_dim=12, widths=[2], depths=[1])
    report = run_bounds(model, torch.randn(1, 3, 32, 32), radius=0.01, num_steps=1)
    lines = capsys.readouterr().out.splitlines()
    table = lines[: len(report.rows) + 4]
    for row in report.rows:
        (line,) = [line for line in table if line.split()[:1] == [row.name]]
        assert line.split()[1] == f"{row.frobenius.value:.3g}"
        assert len(line) <= 80
    text = " ".join(lines)
    assert "…" not in text
    for row in report.rows:
        assert row.frobenius.reason in text


def test_a_radius_adds_constants_on_balls_to_table_words_and_record(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    model = create_model("lrformer_digits", depth=1)
    record = tmp_path / "bounds.json"
    x = torch.randn(2, 1, 8, 8)
    report = run_bounds(model, x, radius=0.01, json_path=record, num_steps=1)
    printed = capsys.readouterr().out
    assert "F, on balls" in printed
    assert "Within 0.01 of an input" in printed
    local = json.loads(record.read_text())["local"]
    assert local["radius"] == 0.01
    assert local["constants"] == list(report.local.constants)


def test_a_radius_needs_inputs_and_must_be_one():
    with pytest.raises(ConfigError, match="needs inputs to be around"):
        run_bounds(create_model("lrformer_digits", depth=1), radius=0.1)
    with pytest.raises(ConfigError, match=r"radius \(-1\) must be positive and finite"):
        bounds("no such model", radius=-1)


def test_what_is_neither_a_folder_nor_a_model_is_named_so():
    with pytest.raises(ConfigError, match=r"'runs/digit' is neither a folder nor a model"):
        bounds("runs/digit")
    with pytest.raises(ConfigError, match="Did you mean 'lrformer_digits'"):
        bounds("lrformer_digit")


def test_a_run_is_measured_on_its_own_test_split_which_nobody_may_write_to(tmp_path, capsys):
    data = write_arrays(tmp_path / "data")
    for file in data.iterdir():
        file.chmod(0o444)
    config = TrainConfig(
        data=str(data), model="lrformer_digits", model_overrides={"depth": 1}, epochs=1
    )
    train(config, tmp_path / "run", runtime=QUIET)
    capsys.readouterr()
    bounds(str(tmp_path / "run"), images=2)
    assert "blocks.0.attn" in capsys.readouterr().out
    bounds(str(tmp_path / "run"), data=f"{data}:train", images=2)
    assert "blocks.0.attn" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["record", "figure"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(capsys, option):
    with pytest.raises(RunFileError, match=r"/dev/null/b.png cannot be written"):
        bounds("lrformer_digits", **{option: Path("/dev/null/b.png")})
    assert capsys.readouterr().out == ""


def test_every_module_keeps_its_name_on_a_narrow_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run_bounds(
        create_model("lrformer_digits", depth=1), torch.randn(1, 1, 8, 8), radius=0.1, num_steps=1
    )
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(" blocks.0.") for line in lines) == 4
    assert max(map(len, lines)) <= 80
