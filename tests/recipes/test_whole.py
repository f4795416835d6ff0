"""All tables in one call: every part in its order, within one limit, nothing twice."""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from lrformer.core import ConfigError
from lrformer.recipes import TABLES, table_engine
from lrformer.recipes.settings import Settings, make_table
from lrformer.recipes.table_record import read_table_record
from lrformer.recipes.table_run import Circumstances
from lrformer.recipes.time_limit import TimeLimit
from lrformer.recipes.whole import Place, reproduce_all
from lrformer.recipes.whole_plan import Part, whole_plan
from tests.recipes.made_table import QUIET, SMALL, made_run, write_arrays

HOW = Circumstances(runtime=QUIET)
RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("whole") / "shades")


def part(table: str, *rows: str, num_seeds: int = 1, epochs: int = 2, **settings) -> Part:
    chosen = Settings(epochs=epochs, batch_size=8, model_options=dict(SMALL), **settings)
    return Part(table=table, num_seeds=num_seeds, settings=chosen, rows=rows)


@pytest.fixture
def parts():
    return (
        part("attentions", "dot_product", "lrsa", num_seeds=2),
        part("alpha", "alpha_1"),
        part("attentions", "l2", optimizer="paper"),
    )


@pytest.fixture
def made(monkeypatch):
    """Runs are made up; the dictionary holds what was asked for, with the command that asks for it."""
    calls = {}

    def make(planned, folder, how, trained=None):
        key = (planned.row.name, planned.config.seed, planned.variant["optimizer"])
        assert key not in calls
        calls[key] = how.command
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", make)
    return calls


ALL = [
    ("dot_product", 0, "modern"),
    ("lrsa", 0, "modern"),
    ("dot_product", 1, "modern"),
    ("lrsa", 1, "modern"),
    ("alpha_1", 0, "modern"),
    ("l2", 0, "paper"),
]


@pytest.fixture
def place(data, tmp_path):
    (tmp_path / "records").mkdir()
    return Place(data=str(data), out=tmp_path / "runs", records=tmp_path / "records")


def test_every_part_is_made_in_its_order_and_nothing_twice(made, parts, place):
    whole = reproduce_all(place, parts=parts, how=HOW)
    assert list(made) == ALL
    assert [standing.num_finished for standing in whole.standings] == [4, 1, 1]
    assert whole.stops == ()
    assert sorted(path.name for path in place.records.glob("*.json")) == [
        "shades-alpha.json",
        "shades-attentions.json",
    ]
    elsewhere = dataclasses.replace(place, out=place.out / "other")
    assert reproduce_all(elsewhere, parts=parts, how=HOW).standings == whole.standings


def test_the_command_of_a_part_asks_for_the_same_runs(made, parts, place):
    reproduce_all(place, parts=parts, how=HOW)
    command = made["l2", 0, "paper"]
    assert command.startswith("lrformer reproduce attentions --data shades --seeds 1 --rows l2 ")
    assert "--optimizer paper --pixels 32 --epochs 2 --batch-size 8 " in command
    assert "--model-option embed_dim=8" in command


def test_without_a_folder_of_records_each_lies_with_its_runs(made, parts, data, tmp_path):
    reproduce_all(Place(data=str(data), out=tmp_path), parts=parts, how=HOW)
    assert (tmp_path / "attentions.json").is_file()
    assert (tmp_path / "alpha.json").is_file()


def test_a_listing_runs_nothing_and_says_what_is_left(made, parts, place):
    reproduce_all(place, parts=parts[:1], how=HOW)
    made.clear()
    listing = dataclasses.replace(place, out=None)
    wider = (dataclasses.replace(parts[0], num_seeds=3), *parts[1:])
    whole = reproduce_all(listing, parts=wider, how=HOW, is_listing=True)
    assert not made
    assert [standing.left_in_words for standing in whole.standings] == [
        "every row (1)",
        "all",
        "all",
    ]
    rows = dataclasses.replace(parts[0], rows=("dot_product", "l2"))
    (standing,) = reproduce_all(listing, parts=[rows], how=HOW, is_listing=True).standings
    assert standing.left_in_words == "l2 (2)"


def test_what_is_left_takes_as_long_as_recorded_runs_did(made, parts, place):
    reproduce_all(place, parts=parts[:1], how=HOW)
    wider = (dataclasses.replace(parts[0], num_seeds=14), parts[1])
    known, unknown = reproduce_all(place, parts=wider, how=HOW, is_listing=True).standings
    assert known.seconds == 24 * 11  # 10 s of training, 1 of evaluation
    assert known.time_in_words == "4 min"
    assert (unknown.seconds, unknown.time_in_words) == (None, "not known")


def test_all_parts_share_the_time(made, parts, place, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(TimeLimit, "_start_timer", lambda self: None)
    make = table_engine.make_run

    def slow(*arguments):
        clock[0] += 12
        return make(*arguments)

    monkeypatch.setattr(table_engine, "make_run", slow)
    # Runs of 12 s are said to take 12.1: two fit, of the first part no third one, and none of the others is known.
    whole = reproduce_all(place, parts=parts, how=HOW, time_limit=35)
    assert list(made)[:2] == ALL[:2]
    assert len(made) == 3
    assert "attentions: dot_product, seed 1 would not fit" in whole.stops[0]
    assert list(made)[2] == ("alpha_1", 0, "modern")


def test_a_limit_that_is_over_ends_all_parts(parts, place, monkeypatch):
    def stopped(planned, folder, how, trained=None):
        limits[0].is_over = True
        raise KeyboardInterrupt

    limits = []
    enter = TimeLimit.__enter__

    def entered(self):
        limits.append(self)
        return enter(self)

    monkeypatch.setattr(TimeLimit, "__enter__", entered)
    monkeypatch.setattr(table_engine, "make_run", stopped)
    whole = reproduce_all(place, parts=parts, how=HOW, time_limit=1000)
    assert len(limits) == 1
    assert whole.stops == (
        "attentions: the time is over; the run in hand goes on with the same command",
    )


def test_ctrl_c_is_let_through(parts, place, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(table_engine, "make_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce_all(place, parts=parts, how=HOW, time_limit=1000)


def test_a_fault_that_meets_every_run_ends_all_parts(parts, place, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(table_engine, "make_run", broken)
    whole = reproduce_all(place, parts=parts, how=HOW)
    assert "3 runs in a row failed alike" in whole.stops[-1]
    assert [len(s.left) for s in whole.standings] == [4, 1, 1]
    assert {run.status for run in whole.standings[0].left} == {"failed", "missing"}
    assert {run.status for run in whole.standings[1].left} == {"missing"}


def test_a_damaged_record_of_a_later_part_is_named_before_the_first_run(made, parts, place):
    (place.records / "shades-alpha.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"shades-alpha\.json is not the record of a table"):
        reproduce_all(place, parts=parts, how=HOW)
    assert not made


def test_without_any_folder_it_says_which_is_missing(parts):
    with pytest.raises(ConfigError, match="give --out FOLDER, or --list with --records FOLDER"):
        reproduce_all(Place(data="cifar10", out=None), parts=parts, is_listing=True)


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "digits"])
def test_the_plan_can_be_made_on_any_data(data):
    plan = whole_plan()
    assert {item.table for item in plan} == set(TABLES.names())
    for item in plan:
        table = make_table(item.table, data, item.settings)
        for row in item.rows or ():
            table.row(row)
    titles = [(item.table, item.num_seeds, str(item.settings), item.rows) for item in plan]
    assert len(set(titles)) == len(titles)


def test_every_recorded_run_on_cifar10_belongs_to_the_plan():
    """What the pages show is what the one command makes; looks aside have records of their own names."""
    place = Place(data="cifar10", out=None, records=RESULTS)
    how = Circumstances(ood=("svhn", "cifar100"))
    whole = reproduce_all(place, how=how, is_listing=True)
    planned = {
        (standing.part.table, run.row, run.seed, json.dumps(run.variant))
        for standing in whole.standings
        for found in standing.result.standings
        for run in found.attempts
    }
    for name in TABLES.names():
        record = read_table_record(RESULTS / f"cifar10-{name}.json", table=name, data="cifar10")
        for run in record.runs:
            assert (name, run.row, run.seed, json.dumps(run.variant)) in planned
