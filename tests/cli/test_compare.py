import json
import shutil

import pytest
from typer.testing import CliRunner

from lrformer.cli.compare_command import repeat_with
from lrformer.cli.main import app
from lrformer.core import ConfigError, from_record
from lrformer.evaluation import Comparison, compare_runs
from lrformer.training.run_config import read_run_config
from tests.evaluation.made_evaluation import keep_evaluation
from tests.evaluation.made_run import write_image_folder, write_run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("compare")
    data = write_image_folder(place / "data")
    write_run(place / "run", data, root=place / "cache")
    return place


@pytest.fixture
def seeds(place, tmp_path):
    """Return two folders of evaluated seeds."""
    config = read_run_config(place / "run")
    for name, signal in (("lrf", 2.5), ("plain", 1.0)):
        for seed in (0, 1):
            keep_evaluation(tmp_path / name / f"seed-{seed}", config, seed=seed, signal=signal)
    return tmp_path / "lrf", tmp_path / "plain"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_what_is_printed_is_the_comparison(seeds):
    result = invoke("compare", seeds[0], "--with", seeds[1])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{compare_runs(*seeds)}\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a --with b", "a --with=b"),
        ("a b --with c d", "a b --with=c --with=d"),
        ("--with c d --level 0.9 a b", "--with=c --with=d --level 0.9 a b"),
        ("a --with=c d --json", "a --with=c --with=d --json"),
        ("a --with c --with d", "a --with=c --with=d"),
        ("a --with", "a"),
    ],
)
def test_all_that_follows_with_is_of_the_other_side(given, expected):
    assert repeat_with(given.split()) == expected.split()


def test_seeds_one_by_one_and_options_behind_them_reach_the_comparison(seeds):
    lrf, plain = ([side / "seed-0", side / "seed-1"] for side in seeds)
    result = invoke("compare", *lrf, "--with", *plain, "--level", "0.8")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{compare_runs(lrf, plain, level=0.8)}\n"
    one = invoke("compare", lrf[0], "--with", plain[0], "--draws", "7", "--seed", "5")
    assert one.stdout == f"{compare_runs(lrf[0], plain[0], num_draws=7, seed=5)}\n"


def test_the_record_is_printed_or_written_and_read_again(seeds, tmp_path):
    comparison = compare_runs(*seeds)
    printed = invoke("compare", seeds[0], "--with", seeds[1], "--json")
    assert from_record(Comparison, json.loads(printed.stdout)) == comparison
    out = tmp_path / "kept" / "comparison.json"
    written = invoke("compare", seeds[0], "--with", seeds[1], "--out", out)
    assert written.stdout == f"{comparison}\nRecord: {out}\n"
    assert from_record(Comparison, json.loads(out.read_text())) == comparison


@pytest.mark.parametrize(
    "arguments", [(), ("LRF",), ("--with", "LRF"), ("--with", "LRF", "PLAIN"), ("LRF", "--with")]
)
def test_a_side_that_is_missing_is_asked_for(seeds, arguments):
    places = {"LRF": seeds[0], "PLAIN": seeds[1]}
    result = invoke("compare", *(places.get(word, word) for word in arguments))
    assert isinstance(result.exception, ConfigError)
    assert "lrformer compare RUN... --with RUN..." in str(result.exception)


def test_a_record_that_cannot_be_written_is_found_first(seeds, monkeypatch):
    monkeypatch.setattr("lrformer.evaluation.compare_runs", None)
    result = invoke("compare", seeds[0], "--with", seeds[1], "--out", "/dev/null/x.json")
    assert "x.json cannot be written" in str(result.exception)


def test_help_shows_an_example():
    result = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "Example: lrformer compare runs/lrf --with runs/plain" in result.output


def test_what_evaluate_puts_elsewhere_can_be_compared(place, tmp_path):
    for name, seeds in (("one", (0, 1)), ("two", (1, 0))):
        for seed in seeds:
            folder = shutil.copytree(place / "run", tmp_path / name / f"seed-{seed}")
            record = json.loads((folder / "config.json").read_text())
            record["config"]["train"]["seed"] = seed
            (folder / "config.json").write_text(json.dumps(record))
        before = invoke("compare", tmp_path / name, "--with", place / "run")
        assert f"Run `lrformer evaluate {tmp_path / name}` first" in str(before.exception)
        fast = ("--out", tmp_path / "kept" / name, "--no-report", "--draws", "5", "--device", "cpu")
        assert invoke("evaluate", tmp_path / name, *fast).exit_code == 0
    result = invoke("compare", tmp_path / "kept" / "one", "--with", tmp_path / "kept" / "two")
    assert result.exit_code == 0, result.output
    assert "over 2 common seeds (0, 1)" in result.stdout
    assert "ood-gray, by entropy" in result.stdout
