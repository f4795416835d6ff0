import csv
import io
import json
import shutil

import pytest
from typer.testing import CliRunner

from lrformer.cli.main import app
from lrformer.cli.predict_command import WRITERS, Counted, More, _write_out
from lrformer.data import read_image
from lrformer.evaluation import FilePrediction, predict_files
from lrformer.training import load_run
from tests.evaluation.made_run import write_image_folder, write_run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("predict")
    data = write_image_folder(place / "data")
    write_run(place / "run", data, root=place / "cache")
    (place / "broken.jpg").write_bytes(b"\xff\xd8 not really")
    return place


def invoke(*arguments, **settings):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)], **settings)


def test_json_is_one_array_with_a_row_for_every_file(place):
    test = place / "data" / "test"
    result = invoke(place / "run", test, "--format", "json", "--batch-size", 5)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    files = sorted(test.rglob("*.png"))
    expected = list(predict_files(load_run(place / "run"), files))
    assert [row["file"] for row in rows] == [str(path) for path in files]
    assert [row["class"] for row in rows] == [row.label for row in expected]
    assert [row["in_distribution"] for row in rows] == [row.is_in_distribution for row in expected]
    assert rows[0]["probability"] == pytest.approx(expected[0].probability, abs=1e-5)
    assert {row["error"] for row in rows} == {None}


def test_good_and_broken_files_together_give_a_row_each_and_exit_code_one(place):
    good = place / "data" / "test" / "red" / "000.png"
    result = invoke(
        place / "run", good, place / "broken.jpg", place / "gone.png", "--format", "csv"
    )
    assert result.exit_code == 1
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["file"] for row in rows] == [str(good), str(place / "broken.jpg"), str(place / "gone.png")]  # fmt: skip
    assert rows[0]["class"] in {"blue", "green", "red"}
    assert rows[0]["in_distribution"] in {"True", "False"}
    assert rows[0]["error"] == ""
    assert rows[1]["class"] == rows[1]["probability"] == ""
    assert "not a readable image" in rows[1]["error"]
    assert "no such file" in rows[2]["error"]
    assert "2 images" in result.stderr
    assert f"1 failed. 1 name stands for no image: {place / 'gone.png'} (there is no such file).\n" in result.stderr  # fmt: skip


def test_an_empty_folder_and_a_missing_file_are_no_images_and_are_said_to_be_none(place, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    alone = invoke(place / "run", empty)
    assert alone.exit_code == 1
    assert alone.stderr.startswith("0 images: 0 in distribution, 0 out of distribution")
    said = f"0 failed. 1 name stands for no image: {empty} (the folder has no image in it).\n"
    assert alone.stderr.endswith(said)
    assert "the folder has no image in it" in alone.stdout
    gone = [tmp_path / f"{number}.png" for number in range(3)]
    good = place / "data" / "test" / "red" / "000.png"
    result = invoke(place / "run", good, tmp_path / "*.gif", *gone, "--format", "json")
    assert len(json.loads(result.stdout)) == 5
    assert result.stderr.startswith("1 image: ")
    assert f"0 failed. 4 names stand for no image: {tmp_path / '*.gif'} (no file matches" in result.stderr  # fmt: skip
    assert result.stderr.endswith("(there is no such file), and 1 more.\n")
    assert result.exit_code == 1


def test_the_table_is_for_people(place):
    result = invoke(place / "run", place / "data" / "ood-gray", place / "broken.jpg")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["file", "class", "prob", "uncertainty", "known"]
    assert len(lines) == 1 + 15 + 1
    assert "  error: not a readable image" in lines[-1]
    assert {line.split()[-1] for line in lines[1:-1]} <= {"yes", "NO"}


def test_globs_are_expanded_and_names_are_read_from_standard_input(place):
    pattern = place / "data" / "test" / "*" / "000.png"
    rows = json.loads(invoke(place / "run", pattern, "--format", "json").stdout)
    assert len(rows) == 3
    names = "\n".join(row["file"] for row in rows)
    again = invoke(place / "run", "-", "--format", "json", input=f"\ufeff{names}\n\n")
    assert json.loads(again.stdout) == rows


def test_a_file_is_one_line_of_the_table_whatever_its_name(place, tmp_path):
    odd = [tmp_path / "two\nlines.png", tmp_path / "a\u2028b.png"]
    for path in odd:
        shutil.copy(place / "data" / "test" / "red" / "000.png", path)
    shown = invoke(place / "run", *odd).stdout
    assert shown.count("\n") == 3
    assert "two\\nlines.png" in shown
    listed = invoke(place / "run", "-", "--format", "json", input=f"{odd[1]}\n").stdout
    assert [row["file"] for row in json.loads(listed)] == [str(odd[1])]


@pytest.mark.parametrize("num_rows", [0, 2])
def test_after_ctrl_c_the_json_array_is_closed_and_holds_what_was_done(
    place, monkeypatch, num_rows
):
    rows = list(predict_files(load_run(place / "run"), [place / "broken.jpg"] * num_rows))

    def interrupted(*_, **__):
        yield from rows
        raise KeyboardInterrupt

    monkeypatch.setattr("lrformer.evaluation.predict_files", interrupted)
    result = invoke(place / "run", place / "data" / "test", "--format", "json")
    assert result.exit_code == 130
    assert len(json.loads(result.stdout)) == num_rows


def test_ctrl_c_while_a_row_is_written_closes_the_json_array_too(monkeypatch):
    class SlowReader(io.StringIO):
        num_flushed = 0

        def flush(self):
            self.num_flushed += 1
            if self.num_flushed == 3:
                raise KeyboardInterrupt

    out = SlowReader()
    monkeypatch.setattr("sys.stdout", out)
    row = FilePrediction(file="a.png", error="gone")
    counted = Counted([row] * 5)
    _write_out(WRITERS["json"](counted, 0, More()), counted)
    assert counted.is_stopped
    assert len(json.loads(out.getvalue())) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "jsn"), "unknown format 'jsn'. Did you mean 'json'"),
        (("--batch-size", "0"), "batch_size"),
        (("--device", "gpu"), "device"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(place, arguments, message):
    result = invoke(place / "run", place / "data" / "test", *arguments)
    assert message in str(result.exception)
    assert result.stdout == ""


def test_a_folder_that_is_no_run_is_refused(place):
    result = invoke(place / "data", place / "data" / "test")
    assert "config.json" in str(result.exception)


def test_without_further_wishes_the_output_is_the_same_to_the_byte(place):
    files = (place / "data" / "test" / "red" / "000.png", place / "broken.jpg")
    row = next(iter(predict_files(load_run(place / "run"), files[:1])))
    said = (row.file, row.label, row.probability, row.uncertainty, row.is_in_distribution)
    csv_text = invoke(place / "run", *files, "--format", "csv").stdout
    header, first, _ = csv_text.splitlines()
    assert header == "file,class,probability,uncertainty,in_distribution,error"
    assert first == f"{','.join(map(str, said))},"
    json_text = invoke(place / "run", *files, "--format", "json").stdout
    assert json_text.splitlines()[1] == json.dumps(
        {**dict(zip(header.split(","), said, strict=False)), "error": None}
    ) + ","  # fmt: skip
    assert invoke(place / "run", *files, "--format", "csv", "--top", 1).stdout == csv_text


def test_the_most_probable_classes_come_in_their_order_in_json_csv_and_table(place):
    file = place / "data" / "test" / "red" / "000.png"
    run = load_run(place / "run")
    probs = run.predict(read_image(file)[None]).probs[0]
    order = probs.argsort(descending=True).tolist()
    names = [run.class_names[label] for label in order]
    (row,) = json.loads(invoke(run.path, file, "--format", "json", "--top", 3).stdout)
    assert [entry["class"] for entry in row["top"]] == names
    assert [entry["probability"] for entry in row["top"]] == pytest.approx(probs[order].tolist())
    assert row["top"][0] == {"class": row["class"], "probability": row["probability"]}
    given = invoke(run.path, place / "broken.jpg", file, "--format", "csv", "--top", 2).stdout
    broken, read = csv.DictReader(io.StringIO(given))
    assert list(read)[-3:] == ["error", "class_2", "probability_2"]
    assert (read["class"], read["class_2"]) == tuple(names[:2])
    assert float(read["probability_2"]) == pytest.approx(float(probs[order[1]]))
    assert broken["class_2"] == broken["probability_2"] == ""
    table = invoke(run.path, file, "--top", 2).stdout
    assert f"{names[1]} {float(probs[order[1]]):.3f}" in table.splitlines()[1]


def test_every_score_of_the_run_is_given_where_it_is_asked_for(place):
    file = place / "data" / "test" / "red" / "000.png"
    run = load_run(place / "run")
    predictive = run.predict(read_image(file)[None])
    expected = {name: predictive.uncertainty(name).item() for name in predictive.scores}
    assert {"msp", "entropy", "energy"} <= set(expected)
    broken, read = json.loads(
        invoke(run.path, place / "broken.jpg", file, "--format", "json", "--all-scores").stdout
    )
    assert read["scores"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert read["scores"][run.decision.score] == read["uncertainty"]
    assert broken["scores"] == {}
    given = invoke(run.path, place / "broken.jpg", file, "--format", "csv", "--all-scores").stdout
    broken, read = csv.DictReader(io.StringIO(given))
    assert {name: float(read[name]) for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)  # fmt: skip
    assert broken["entropy"] == ""


@pytest.mark.parametrize("top", [0, 4])
def test_more_classes_than_there_are_and_none_are_refused(place, top):
    result = invoke(place / "run", place / "data" / "test", "--top", top)
    assert f"top ({top}) must be from 1 to 3, the number of classes of" in str(result.exception)
    assert result.stdout == ""
