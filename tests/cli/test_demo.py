import re

import pytest
from typer.testing import CliRunner

from lrformer.cli import demo_command
from lrformer.cli.main import app
from lrformer.core import ConfigError
from lrformer.metrics import seed_interval
from lrformer.recipes import demo as recipe
from lrformer.recipes.comparison import compare
from lrformer.recipes.demo import METRICS, OURS, PLAIN, Demo


def made_demo(tmp_path, gain: float) -> Demo:
    """A demo whose figures are made up, to see that what is printed follows from them."""
    theirs = {seed: {metric.name: 0.5 + 0.1 * seed for metric in METRICS} for seed in range(3)}
    ours = {
        seed: {name: value + gain for name, value in run.items()} for seed, run in theirs.items()
    }
    return Demo(
        rows=tuple(compare(theirs, ours, METRICS)),
        scores={PLAIN: "entropy", OURS: "variance"},
        moons=(),
        report=tmp_path / "report.html",
        picture=tmp_path / "moons.png",
        record=tmp_path / "demo.json",
        seconds=12.3,
    )


def printed(monkeypatch, tmp_path, gain: float) -> str:
    monkeypatch.setattr(recipe, "run_demo", lambda *_, **__: made_demo(tmp_path, gain))
    result = CliRunner().invoke(
        app, ["demo", "--out", str(tmp_path)], env={"COLUMNS": "200"}, catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.output


def test_the_table_shows_both_models_and_the_difference(monkeypatch, tmp_path):
    output = printed(monkeypatch, tmp_path, 0.05)
    assert re.search(r"accuracy ↑\s+0\.6000 ± 0\.2484\s+0\.6500 ± 0\.2484\s+\+0\.0500", output)
    assert "found by entropy (plain transformer) and variance (LRFormer)" in output
    assert str(tmp_path / "report.html") in output
    assert str(tmp_path / "moons.png") in output


def test_what_is_said_follows_from_the_figures(monkeypatch, tmp_path):
    ahead = printed(monkeypatch, tmp_path, 0.05)
    assert "ahead on every seed (3) in: accuracy, AUROC on 5 to 9" in ahead
    assert "not ahead in NLL on seeds 0, 1, 2" in ahead
    behind = printed(monkeypatch, tmp_path, -0.05)
    assert "not ahead in AUROC on 5 to 9 on seeds 0, 1, 2" in behind
    assert "ahead on every seed (3) in: ECE, NLL." in behind


def test_one_seed_has_no_interval():
    row = compare({0: {"accuracy": 0.5}}, {0: {"accuracy": 0.75}}, METRICS[:1])[0]
    assert seed_interval([0.5]).high is None
    assert demo_command._cells(row) == ["0.5000", "0.7500", "+0.2500"]


def test_figure3_prints_the_maximum_that_it_found(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "figure3", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert "1.128904145185" in result.output
    assert (tmp_path / "figure3.png").is_file()


def test_a_wrong_method_of_figure1_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'sngp'"):
        CliRunner().invoke(
            app,
            ["reproduce", "figure1", "--methods", "lrformer,sgnp", "--out", str(tmp_path / "out")],
            catch_exceptions=False,
        )
    assert not (tmp_path / "out").exists()
