"""The Python of docs/evaluation.md that is whole in itself runs, and its options are there."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lrformer.cli.main import app
from lrformer.evaluation import Results
from tests.evaluation.made_evaluation import keep_evaluation

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_figures_of_an_own_model_are_made_as_the_page_says(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", section("Figures of your own model"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(compile(block, "evaluation.md", "exec"), namespace)
    scores = namespace["results"].scores
    said = capsys.readouterr().out
    assert str(scores) in said
    assert "At the kept threshold (variance <= " in said
    assert scores("accuracy") > 0.9
    assert scores("auroc", dataset="digits 5 to 9") > 0.8
    assert 0.85 < scores("accepted_at_threshold") <= 1
    assert "<title>My network</title>" in (tmp_path / "report.html").read_text()
    assert Results.load(tmp_path / "results").scores == scores


def test_two_methods_are_compared_as_the_page_says(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, signal in (("lrf", 2.5), ("plain", 1.0)):
        for seed in (0, 1):
            folder = tmp_path / "runs" / name / f"seed-{seed}"
            keep_evaluation(folder, run.config, seed=seed, signal=signal, unknown={"svhn": 30})
    text = section("Comparing two methods")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    namespace = {}
    exec(compile(block, "evaluation.md", "exec"), namespace)
    said = capsys.readouterr().out
    assert said.startswith(str(namespace["comparison"]))
    assert "Student's t" in said
    figure = namespace["figure"]
    assert figure.ours - figure.theirs == pytest.approx(figure.difference)
    commands = re.findall(r"^\$ lrformer (.*)$", text, re.MULTILINE)
    shown = [CliRunner().invoke(app, shlex.split(command)) for command in commands]
    assert [result.exit_code for result in shown] == [0, 0]
    assert "Student's t" in shown[0].output
    assert "paired bootstrap" in shown[1].output
    assert (tmp_path / "one-training.json").is_file()


def test_every_option_that_the_page_names_exists():
    commands = get_command(app).commands
    known = {name for command in commands.values() for option in command.params for name in (*option.opts, *option.secondary_opts)}  # fmt: skip
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert {"--ood", "--top", "--all-scores"} <= named
    assert named <= known
