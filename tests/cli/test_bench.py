import json
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lrformer.bench import attention_row
from lrformer.cli.bench_tables import show_attention_row, show_growth, show_models
from lrformer.cli.main import app, main
from tests.bench import made_up

TINY = ["--repeats", "1", "--seconds", "0.001", "--device", "cpu", "--backends", "sdpa"]


def printed(show, *arguments) -> str:
    console = Console(width=160, highlight=False)
    with console.capture() as capture:
        show(*arguments, console)
    return capture.get()


def run(*arguments: str):
    return CliRunner().invoke(
        app, ["bench", *arguments], env={"COLUMNS": "160"}, catch_exceptions=False
    )


def test_attention_prints_a_verdict_and_writes_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(attention_row, "_MAX_INPUT_SETS", 1)
    out = tmp_path / "deep" / "record.json"
    shape = ["--shapes", "1x1x5", "--widths", "8", "--no-growth"]
    result = run("attention", *shape, *TINY, "--out", str(out))
    assert result.exit_code == 0
    assert "1 x 1 x 5, head width 8" in result.output
    assert "of dot_product flash eager (goal 0.95" in result.output
    assert json.loads(out.read_text())["rows"][0]["key"] == "goal 1x1x5x8"
    again = run("attention", *shape, *TINY, "--out", str(out))
    assert "1 x 1 x 5, head width 8" in again.output  # shown from the record, not measured anew
    assert "1/1" not in again.output


def test_a_row_shows_ratio_memory_errors_and_who_failed():
    met, short, tokens, _ = made_up.attention_record()["rows"]
    text = printed(show_attention_row, met)
    assert "lrsa triton compiled: 1.250 of dot_product flash eager (goal 0.95: met)" in text
    assert "as CUDA graphs, memory 0.800 times (goal 1.05: met)." in text
    assert text.count("1.250 of dot_product flash eager (goal 0.95: met)") == 2
    assert "failed: RuntimeError: No available kernel" in text
    text = printed(show_attention_row, short)
    assert "0.500 of dot_product flash eager (goal 0.95: short)" in text
    assert "memory 2.000 times (goal 1.05: short)" in text
    assert "36.000" in printed(show_growth, [tokens], "tokens")


def test_models_are_shown_beside_timms(tmp_path):
    text = printed(show_models, made_up.model_record(), tmp_path / "record.json")
    assert "9,180.0" in text
    assert "1.020   0.97     met" in text
    assert "0.850   0.97   short" in text
    assert "failed: out of memory" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", "--shapes", "64x6"], "shapes ('64x6') must be batch x heads x tokens"),
        (["attention", "--widths", "wide"], "widths ('wide') must be whole numbers"),
        (["attention", "--backends", "spda"], "Did you mean 'sdpa'?"),
        (["attention", "--device", "tpu"], "device ('tpu') must be one of auto, cpu, cuda"),
        (["training", "--batch", "0"], "batch (0) must be at least 1"),
        (["training", "--compile", "model", "--no-compile"], "contradict"),
        (["attention", "--out", "/"], "/ cannot be written (it is a folder)"),
        (["training", "--out", "/dev/null/x.json"], "/dev/null/x.json cannot be written"),
        (["inference", "--batch", "1,-4"], "batch ('-4') must be whole numbers"),
        (["inference", "--compile", "hard"], "compile ('hard') must be one of model, blocks, none"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_two(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lrformer", "bench", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["attention", "training", "inference"])
def test_help_shows_an_example(name):
    result = run(name, "--help")
    assert f"Example: lrformer bench {name}" in result.output
