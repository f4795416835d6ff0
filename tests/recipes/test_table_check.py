"""What a table refuses before it trains, and what it takes for the same run."""

import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lrformer.core import ConfigError
from lrformer.data import read_image
from lrformer.evaluation import EvaluationConfig, Scores
from lrformer.evaluation.scores import Metric
from lrformer.recipes import plan_runs, reproduce_table, table_check, table_engine
from lrformer.recipes.table_record import (
    TableRecord,
    add_to_record,
    pack_scores,
    read_table_record,
    write_table_record,
)
from lrformer.recipes.table_run import Circumstances, failed_run, first_folder, run_folder
from lrformer.training import update_metrics
from tests.recipes.made_table import QUIET, made_run, small_table, write_arrays

HOW = Circumstances(runtime=QUIET)


def test_runs_on_other_data_under_the_same_name_are_not_mixed(tmp_path):
    how = dataclasses.replace(HOW, evaluation=dataclasses.replace(HOW.evaluation, num_draws=5))
    data = write_arrays(tmp_path / "shades")
    table = small_table(data, epochs=1)
    record = tmp_path / "record.json"

    def run(out: str, num_seeds: int):
        return reproduce_table(
            table, tmp_path / out, record_path=record, rows=["lrsa"], num_seeds=num_seeds, how=how
        )

    first = run("here", 1)
    assert first.record.runs[0].data_digest
    before = record.read_bytes()
    for file in data.glob("*.json"):
        file.unlink()
    np.save(data / "train-x.npy", np.load(data / "train-x.npy")[:, ::-1].copy())
    with pytest.raises(ConfigError, match=r"has runs on other data than those of .*shades now"):
        run("there", 2)
    assert record.read_bytes() == before
    for file in data.glob("*.json"):
        file.unlink()
    write_arrays(data)
    assert [standing.status for standing in run("there", 2).standings] == ["finished"] * 2


def test_a_row_that_is_recorded_as_failed_is_looked_at_again_only_for_a_retry(made, data, tmp_path):
    calls, _ = made
    table = small_table(data)
    (bad, *_), record = plan_runs(table, rows=["lrsa"], num_seeds=1), tmp_path / "attentions.json"
    entry = failed_run(bad, ArithmeticError("not finite"), HOW)
    write_table_record(record, TableRecord(table=table.name, data=table.data, runs=(entry,)))
    seen = []

    def look(config):
        seen.append(config.model_overrides["attention"])
        raise ConfigError("it cannot work")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table_check, "check_run", look)
        reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW)
        assert seen == calls == []
        with pytest.raises(ConfigError, match="row 'lrsa' cannot be made: it cannot work"):
            reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW, is_retrying=True)
    assert seen == ["lrsa"]


def test_one_record_holds_runs_on_images_of_two_sizes(tmp_path, write_photos, monkeypatch):
    how = dataclasses.replace(HOW, evaluation=dataclasses.replace(HOW.evaluation, num_draws=5))
    for size in (8, 16):
        table = small_table(write_photos(tmp_path / "photos"), epochs=1).changed(
            lambda c, size=size: dataclasses.replace(
                c, model_overrides={**c.model_overrides, "img_size": size}, root=str(tmp_path / "c")
            ),
            {"model": {"img_size": size}},
        )
        made = reproduce_table(table, tmp_path / "out", rows=["lrsa"], num_seeds=1, how=how)
        assert [standing.status for standing in made.standings] == ["finished"]
    assert len({run.data_digest for run in made.record.runs}) == 2


def test_a_recorded_run_of_a_model_that_is_gone_is_no_obstacle(made, data, tmp_path):
    table = small_table(data)
    (run,) = plan_runs(table, rows=["lrsa"], num_seeds=1)
    old = made_run(run, HOW)
    gone = dataclasses.replace(old.config, model="retired_preset", seed=7)
    old = dataclasses.replace(old, config=gone, data_digest="of that time", seed=7)
    record = TableRecord(table=table.name, data=table.data, runs=(old,))
    write_table_record(tmp_path / "attentions.json", record)
    found = reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW)
    assert [standing.status for standing in found.standings] == ["finished"]


def test_a_run_that_was_begun_goes_on_only_with_sets_that_are_there(made, data, tmp_path):
    calls, _ = made
    table = small_table(data)
    (run,) = plan_runs(table, rows=["lrsa"], num_seeds=1)
    folder = first_folder(tmp_path, table, run)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    wrong = dataclasses.replace(HOW, ood=("svnh",))
    with pytest.raises(ConfigError, match="Did you mean 'svhn'"):
        reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=wrong)
    assert not calls


def _write_broken(folder):
    folder.mkdir()
    (folder / "0.png").write_bytes(b"no image")


def _write_points(folder):
    folder.mkdir()
    np.save(folder / "test-x.npy", np.zeros((4, 2), dtype=np.float32))
    np.save(folder / "test-y.npy", np.zeros(4, dtype=np.int64))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder.mkdir(), "strange has no image in it"),
        (_write_broken, "0.png: not a readable image"),
        (lambda folder: (folder / "train" / "a").mkdir(parents=True), "train has one class"),
        (_write_points, "test-x.npy: images have shape"),
    ],
    ids=["empty", "broken", "half a data set", "points"],
)
def test_a_folder_that_cannot_be_the_unknown_costs_no_training(made, data, tmp_path, make, words):
    calls, _ = made
    make(tmp_path / "strange")
    wrong = dataclasses.replace(HOW, ood=(str(tmp_path / "strange"),))
    with pytest.raises(ConfigError, match=words):
        reproduce_table(small_table(data), tmp_path / "out", num_seeds=1, how=wrong)
    assert not calls


def test_points_and_images_are_not_unknown_to_each_other(data):
    images = plan_runs(small_table(data), num_seeds=1)[0].config
    with pytest.raises(ConfigError, match=r"'two_moons' holds points,.* must hold images too"):
        table_check.check_unknown_sets(images, ("two_moons",))
    points = dataclasses.replace(images, data="two_moons")
    with pytest.raises(ConfigError, match=r"'digits' holds images, and the run reads points"):
        table_check.check_unknown_sets(points, ("digits",))


def test_of_a_folder_of_unknown_images_only_the_first_is_read(
    data, tmp_path, write_photos, monkeypatch
):
    config = plan_runs(small_table(data), num_seeds=1)[0].config
    photos, read = write_photos(tmp_path / "photos"), []
    write_photos(tmp_path / "photos" / "ood-far")

    def read_one(path, **options):
        read.append(path)
        return read_image(path, **options)

    monkeypatch.setattr(table_check, "read_image", read_one)
    specs = (str(photos), f"{photos}:ood-far", str(data / ".." / "shades:ood-stripes"))
    table_check.check_unknown_sets(config, specs)
    assert [path.relative_to(photos).parts[:2] for path in read] == [
        ("test", "0"),
        ("ood-far", "test"),
    ]


def test_a_validation_split_that_would_be_cut_from_a_folder_may_be_the_unknown(
    data, tmp_path, write_photos
):
    config = plan_runs(small_table(data), num_seeds=1)[0].config
    photos = write_photos(tmp_path / "photos")
    table_check.check_unknown_sets(config, (f"{photos}:val",))
    for image in (photos / "train").rglob("*.png"):
        image.write_bytes(b"no image")
    with pytest.raises(ConfigError, match="not a readable image"):
        table_check.check_unknown_sets(config, (f"{photos}:val",))


def test_a_folder_of_unknown_images_may_lie_in_the_home_of_the_user(
    data, tmp_path, write_photos, monkeypatch
):
    write_photos(tmp_path / "photos")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = plan_runs(small_table(data), num_seeds=1)[0].config
    table_check.check_unknown_sets(config, ("~/photos:train",))
    next((tmp_path / "photos" / "train" / "0").glob("0.png")).write_bytes(b"no image")
    with pytest.raises(ConfigError, match="not a readable image"):
        table_check.check_unknown_sets(config, ("~/photos:train",))


@pytest.fixture
def write_photos():
    def write(folder):
        draw = np.random.default_rng(0)
        for split in ("train", "test"):
            for label in range(3):
                place = folder / split / str(label)
                place.mkdir(parents=True, exist_ok=True)
                for number in range(12):
                    pixels = draw.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                    if not (place / f"{number}.png").exists():
                        Image.fromarray(pixels).save(place / f"{number}.png")
        return folder

    return write


def test_a_number_that_a_record_cannot_hold_is_found_in_every_row():
    table = small_table("cifar10")
    good, bad = plan_runs(table, num_seeds=1)
    overrides = {**bad.config.model_overrides, "alpha": float("inf")}
    bad = dataclasses.replace(
        bad, config=dataclasses.replace(bad.config, model_overrides=overrides)
    )
    with pytest.raises(ConfigError, match="row 'lrsa' has a setting that is not a finite number"):
        table_check.check_runs([good, bad], TableRecord(table="a", data="b"), Path("r.json"))


def test_unknown_sets_are_the_same_in_any_order_and_spelling():
    table = small_table("cifar10")
    (run,) = plan_runs(table, rows=["lrsa"], num_seeds=1)
    entry = made_run(run, dataclasses.replace(HOW, ood=("big", "a/noise", "svhn")))
    record = TableRecord(table=table.name, data=table.data, runs=(entry,))
    for asked in (("svhn", "./big", "a//noise"), ("big/",), ()):
        assert record.find("lrsa", run.config, asked) == [entry]
    assert record.find("lrsa", run.config, ("big", "small")) == []


def test_a_figure_that_is_not_finite_is_left_out_of_a_record(tmp_path):
    metric = Metric(dataset="data/test", name="nll", value=math.nan, low=0.25, high=math.inf)
    scores = Scores(
        sets=(), metrics=(metric,), default_score="entropy", given_scores=(), num_classes=3,
        config=EvaluationConfig(), conventions={},
    )  # fmt: skip
    packed = pack_scores(scores)
    assert packed == {"data/test": {"probabilities": {"nll": [None, 0.25, None]}}}
    (run,) = plan_runs(small_table("cifar10"), rows=["lrsa"], num_seeds=1)
    entry = dataclasses.replace(made_run(run), figures={"raw": packed, "calibrated": packed})
    add_to_record(tmp_path / "record.json", entry, table="attentions", data="cifar10")
    back = read_table_record(tmp_path / "record.json", table="attentions", data="cifar10")
    assert back.runs == (entry,)


def test_a_second_retry_goes_on_where_only_the_evaluation_had_failed(tmp_path):
    table = small_table("cifar10")
    (run,) = plan_runs(table, rows=["lrsa"], num_seeds=1)
    assert run_folder(tmp_path, table, run, num_failed=0) == first_folder(tmp_path, table, run)
    again = run_folder(tmp_path, table, run, num_failed=1)
    assert again.name == "seed-0-again-1"
    assert run_folder(tmp_path, table, run, num_failed=2).name == "seed-0-again-2"
    update_metrics(again, "training", {"seconds": 1.0})
    assert run_folder(tmp_path, table, run, num_failed=2) == again
    assert run_folder(tmp_path, table, run, num_failed=0) == again  # on more unknown sets, say


def test_many_seeds_are_planned_at_once():
    began = time.monotonic()
    plan = plan_runs(small_table("cifar10"), num_seeds=2000)
    assert len({(run.row.name, run.config.seed) for run in plan}) == len(plan) == 4000
    assert time.monotonic() - began < 10


def test_an_evaluation_that_a_limit_has_cut_off_is_finished_by_the_next_call(
    data, tmp_path, monkeypatch
):
    table = small_table(data)

    def evaluate_slowly(planned, folder, how, trained=None):
        update_metrics(folder, "training", {"seconds": 1.0})
        for _ in range(100):
            time.sleep(0.01)
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", evaluate_slowly)

    def call():
        return reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW, time_limit=0.3)

    first = call()
    assert first.stopped is not None
    assert not first.record.runs
    second = call()
    assert [standing.status for standing in second.standings] == ["finished"]


def test_an_error_does_not_say_where_the_runs_lie(tmp_path):
    (run,) = plan_runs(small_table("cifar10"), rows=["lrsa"], num_seeds=1)
    entry = failed_run(run, ArithmeticError(f"kept in {tmp_path / 'x'}"), HOW, tmp_path / "x")
    assert entry.error == "ArithmeticError: kept in its folder"


def _without(*keys: str):
    def damage(content):
        part = content
        for key in keys[:-1]:
            part = part[int(key) if key.isdigit() else key]
        del part[keys[-1]]

    return damage


def _with(value, *keys: str):
    def damage(content):
        part = content
        for key in keys[:-1]:
            part = part[int(key) if key.isdigit() else key]
        part[keys[-1]] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without("record"), "is damaged"),
        (_with(None, "record", "runs"), "is damaged"),
        (_with(3, "record", "runs"), "is damaged"),
        (_with(None, "record", "runs", "0", "figures"), "the figures of lrsa, seed 0, lack raw"),
        (_without("record", "runs", "0", "seconds", "evaluation"), "the seconds of lrsa, seed 0"),
        (_with(1, "record", "runs", "0", "config", "unknown"), "no field 'unknown'.*update lrformer"),
        (_with(99, "schema"), "has schema 99, and this lrformer .* reads 1; update lrformer"),
        (_with(None, "schema"), "has schema None.*choose another file"),
        (_with("run", "kind"), "not the record of a table"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_said_with_its_file(tmp_path, damage, message):
    table = small_table("cifar10")
    (run,) = plan_runs(table, rows=["lrsa"], num_seeds=1)
    path = tmp_path / "record.json"
    record = TableRecord(table=table.name, data=table.data, runs=(made_run(run, HOW),))
    write_table_record(path, record)
    assert read_table_record(path, table=table.name, data=table.data) == record
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"record.json.*{message}"):
        read_table_record(path, table=table.name, data=table.data)
