"""`lrformer reproduce all` as a person uses it."""

import pytest
from typer.testing import CliRunner

from lrformer.cli.main import app
from lrformer.core import ConfigError
from lrformer.recipes import table_engine, whole
from lrformer.recipes.settings import Settings
from lrformer.recipes.whole_plan import Part, whole_plan
from tests.recipes.made_table import SMALL, made_run, write_arrays

RUNNER = CliRunner()
SMALL_SETTINGS = Settings(epochs=1, batch_size=8, model_options=dict(SMALL))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("all") / "shades")


@pytest.fixture
def two_parts(monkeypatch):
    """The plan has two small parts."""
    parts = tuple(
        Part(table=table, num_seeds=1, settings=SMALL_SETTINGS, rows=rows)
        for table, rows in (("attentions", ("dot_product", "lrsa")), ("alpha", ("alpha_1",)))
    )
    monkeypatch.setattr(whole, "whole_plan", lambda: parts)


def invoke(*words: object, code: int = 0):
    result = RUNNER.invoke(app, ["reproduce", "all", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code
    return result


def test_what_is_missing_is_made_in_one_command(two_parts, data, tmp_path):
    words = ["--data", data, "--out", tmp_path / "runs", "--draws", 5, "--device", "cpu"]
    shown = invoke(*words)
    assert "1/2 attentions: optimizer `modern`" in shown.stderr
    assert "2/2 alpha: optimizer `modern`" in shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert [line[-3:] for line in lines if line[:1] in (["1"], ["2"])] == [
        ["2", "of", "2"],
        ["1", "of", "1"],
    ]
    assert "seed 0 ..." not in invoke(*words).stderr


def test_the_whole_plan_is_listed(tmp_path):
    shown = invoke("--list", "--out", tmp_path).output
    for part in whole_plan():
        assert f" {part.table} " in shown
    assert "optimizer `published`, 250 epochs" in shown
    assert not any(tmp_path.iterdir())


def test_failed_runs_are_named_with_their_part(two_parts, data, tmp_path, monkeypatch):
    def make(planned, folder, how, trained=None):
        if planned.row.name == "lrsa":
            raise RuntimeError("out of [luck]")
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", make)
    shown = invoke("--data", data, "--out", tmp_path / "runs", code=1)
    assert "failed: 1 attentions, lrsa, seed 0 RuntimeError: out of [luck]" in shown.output
    assert "1 of 1" in shown.output
    assert "failed: 1" in invoke("--data", data, "--out", tmp_path / "runs", "--list").output


def test_a_folder_of_something_else_is_skipped_and_named(two_parts, data, tmp_path, monkeypatch):
    monkeypatch.setattr(
        table_engine, "make_run", lambda planned, folder, how, trained=None: made_run(planned, how)
    )
    out = tmp_path / "runs"
    invoke("--data", data, "--out", out, "--list")
    real = table_engine.take_in_hand

    def refuse(folder):
        if "lrsa" in str(folder):
            raise ConfigError(f"{folder} holds another run.")
        return real(folder)

    monkeypatch.setattr(table_engine, "take_in_hand", refuse)
    shown = invoke("--data", data, "--out", out, code=1).output
    assert "missing: 1 attentions, lrsa, seed 0 (skipped:" in shown


def test_unknown_sets_in_the_folder_of_the_data_are_named(two_parts, data, tmp_path, monkeypatch):
    monkeypatch.setattr(
        table_engine, "make_run", lambda planned, folder, how, trained=None: made_run(planned, how)
    )
    shown = invoke("--data", data, "--out", tmp_path / "runs")
    assert f"--ood {data}:ood-stripes takes them" in shown.stderr


def test_without_a_folder_it_says_what_is_missing():
    with pytest.raises(ConfigError, match="give --out FOLDER, or --list with --records FOLDER"):
        invoke("--list")
