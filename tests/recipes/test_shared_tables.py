"""Several calls of the engine share a table: every run is made once, by one of them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lrformer.recipes import plan_runs, reproduce_table, table_engine
from lrformer.recipes.sharing import lock_path, take_in_hand
from lrformer.recipes.table_record import add_to_record, read_table_record
from lrformer.recipes.table_run import Circumstances, failed_run
from lrformer.training.atomic_files import RunFileError
from tests.recipes.made_table import QUIET, hold, made_run, small_table

HOW = Circumstances(runtime=QUIET)


def test_a_run_in_other_hands_is_skipped_and_said(made, data, tmp_path):
    calls, _ = made
    table, said = small_table(data), []
    with hold(tmp_path, table, "dot_product, seed 0"):
        result = reproduce_table(table, tmp_path, num_seeds=1, how=HOW, say=said.append)
    assert [call[0] for call in calls] == ["lrsa"]
    assert [standing.status for standing in result.standings] == ["in hand", "finished"]
    skipped = "[1/2] dot_product, seed 0 is in the hands of another process; skipped for now"
    assert said[0] == skipped
    assert result.stopped == "other processes have in hand what is left (dot_product, seed 0)"
    again = reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    assert [call[0] for call in calls] == ["lrsa", "dot_product"]
    assert again.stopped is None


def test_a_run_that_was_let_go_meanwhile_is_made_in_the_end(made, data, tmp_path, monkeypatch):
    table, calls = small_table(data), []
    others = hold(tmp_path, table, "dot_product, seed 0")

    def make(planned, folder, how, trained=None):
        calls.append(planned.name)
        others.close()
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", make)
    result = reproduce_table(table, tmp_path, num_seeds=2, how=HOW)
    assert calls == [
        "lrsa, seed 0",
        "dot_product, seed 1",
        "lrsa, seed 1",
        "dot_product, seed 0",
    ]
    assert result.stopped is None


def test_what_another_process_finished_meanwhile_is_kept_and_not_made_again(
    made, data, tmp_path, monkeypatch
):
    table, calls = small_table(data), []
    first, second = plan_runs(table, num_seeds=1)

    def make(planned, folder, how, trained=None):
        calls.append(planned.name)
        other = made_run(second, how, nll=0.123)
        add_to_record(tmp_path / "attentions.json", other, table="attentions", data=str(data))
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", make)
    result = reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    assert calls == [first.name]
    assert [run.row for run in result.record.runs] == ["lrsa", "dot_product"]


def test_a_run_that_was_finished_just_before_it_was_taken_is_not_made_again(
    made, data, tmp_path, monkeypatch
):
    calls, _ = made
    table = small_table(data)
    (run,) = plan_runs(table, rows=["lrsa"], num_seeds=1)

    def take(folder):
        add_to_record(
            tmp_path / "attentions.json", made_run(run), table="attentions", data=str(data)
        )
        return take_in_hand(folder)

    monkeypatch.setattr(table_engine, "take_in_hand", take)
    result = reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW)
    assert not calls
    assert [standing.status for standing in result.standings] == ["finished"]


def test_a_run_that_fails_again_is_not_retried_by_the_same_call_nor_by_one_beside_it(
    made, data, tmp_path, monkeypatch
):
    calls, failures = made
    table = small_table(data)
    failures |= {(row, 0): ArithmeticError(row) for row in ("dot_product", "lrsa")}
    reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    lrsa = plan_runs(table, num_seeds=1)[1]

    def make(planned, folder, how, trained=None):
        calls.append((planned.row.name, planned.config.seed, folder))
        entry = failed_run(lrsa, ArithmeticError("beside"), how)
        add_to_record(tmp_path / "attentions.json", entry, table="attentions", data=str(data))
        raise ArithmeticError("again")

    monkeypatch.setattr(table_engine, "make_run", make)
    reproduce_table(table, tmp_path, num_seeds=1, how=HOW, is_retrying=True)
    assert [call[0] for call in calls] == ["dot_product", "lrsa", "dot_product"]


def test_a_failed_run_that_another_process_tries_again_is_in_hand(made, data, tmp_path):
    calls, failures = made
    failures["lrsa", 0] = ArithmeticError("the loss is not finite")
    table = small_table(data)
    one = {"rows": ["lrsa"], "num_seeds": 1, "how": HOW}
    reproduce_table(table, tmp_path, **one)
    with hold(tmp_path, table, "lrsa, seed 0"):
        result = reproduce_table(table, tmp_path, **one, is_retrying=True)
    assert len(calls) == 1
    assert [standing.status for standing in result.standings] == ["in hand"]


def test_the_record_that_comes_back_has_what_others_added_after_the_last_run(made, data, tmp_path):
    table = small_table(data)
    plain, _ = plan_runs(table, num_seeds=1)

    def add_beside(text):
        if "accuracy" in text:  # the only run of this call is recorded
            record = tmp_path / "attentions.json"
            add_to_record(record, made_run(plain), table="attentions", data=str(data))

    result = reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW, say=add_beside)
    assert [run.row for run in result.record.runs] == ["lrsa", "dot_product"]


def test_calls_side_by_side_make_every_run_once(made, data, tmp_path, monkeypatch):
    table, calls = small_table(data), []

    def make(planned, folder, how, trained=None):
        calls.append(planned.name)
        time.sleep(0.02)
        return made_run(planned, how)

    def call(rows):
        return reproduce_table(table, tmp_path, rows=rows, num_seeds=4, how=HOW)

    monkeypatch.setattr(table_engine, "make_run", make)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(call, [None, ["lrsa"], None]))
    names = sorted(run.name for run in plan_runs(table, num_seeds=4))
    assert sorted(calls) == names
    record = read_table_record(tmp_path / "attentions.json", table="attentions", data=str(data))
    assert sorted(f"{run.row}, seed {run.seed}" for run in record.runs) == names


def test_a_record_whose_lock_cannot_be_taken_is_refused_before_anything_is_trained(
    made, data, tmp_path
):
    calls, _ = made
    lock_path(tmp_path / "attentions.json").mkdir()
    with pytest.raises(RunFileError, match="cannot be opened"):
        reproduce_table(small_table(data), tmp_path, num_seeds=1, how=HOW)
    assert not calls
