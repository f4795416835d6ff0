"""`lrformer export`, as a user meets it."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from lrformer.cli.main import app, main
from lrformer.training.run_folder import MODEL_FILE
from tests.evaluation.made_run import write_image_folder, write_run

# torch cannot trace the hook that checks shapes.
pytestmark = pytest.mark.unhooked


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("export")
    data = write_image_folder(place / "data")
    write_run(place / "run", data, root=place / "cache")
    shutil.rmtree(data)  # an export needs no data
    return place


def invoke(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_the_command_says_what_was_written_and_how_well_it_agrees_and_nothing_else(place):
    command = [sys.executable, "-m", "lrformer", "export", place / "run", place / "colors.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    first, given, flag, checked = done.stdout.splitlines()
    assert first.startswith(f"{place / 'colors.onnx'}: deterministic on lrformer_digits, 3 classes")
    assert given == "input    images: uint8 (batch, 8, 8, 3), height before width, RGB, 0 to 255"
    threshold = json.loads((place / "run" / "decision.json").read_text())["threshold"]
    assert flag.startswith(f"flag     in distribution up to entropy {threshold:.4g}, which")
    assert re.search(r"on 12 made-up inputs: probs \de-\d\d, .*; flags that differ: 0$", checked)
    assert (place / "colors.onnx").is_file()


def test_ctrl_c_with_the_file_half_done_keeps_what_was_there(place, tmp_path, monkeypatch, capsys):
    out = tmp_path / "colors.pt2"
    out.write_bytes(b"old")
    seen = []

    def interrupted(*_, **__):
        seen.extend(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr("lrformer.evaluation.export.check_agreement", interrupted)
    monkeypatch.setattr(sys, "argv", ["lrformer", "export", str(place / "run"), str(out)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert "export and bounds begin anew" in capsys.readouterr().err
    assert len(seen) == 2
    assert list(tmp_path.iterdir()) == [out]
    assert out.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("run", "out", "message"),
    [
        ("gone", "a.pt2", "is not the folder of a run"),
        (".", "a.pt2", "1 are in it: name them"),
        ("run", "a.pickle", r"suffix '.pickle'"),
        ("run", "gone/a.pt2", "gone is not a folder"),
        ("run", "run", "has the suffix ''"),
    ],
)
def test_a_mistake_is_told_and_nothing_written(place, run, out, message):
    before = sorted(place.rglob("*"))
    result = invoke(place / run, place / out)
    assert re.search(message, str(result.exception))
    assert result.stdout == ""
    assert sorted(place.rglob("*")) == before


def test_a_run_that_is_not_finished_is_refused(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / MODEL_FILE).unlink()
    (tmp_path / "run" / "metrics.json").unlink()
    result = invoke(tmp_path / "run", tmp_path / "a.pt2")
    assert "the run is not finished. Run the same train command again" in str(result.exception)
    assert not (tmp_path / "a.pt2").exists()
