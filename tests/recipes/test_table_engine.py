"""The engine makes what is missing, once, and loses nothing."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from lrformer.core import ConfigError
from lrformer.recipes import plan_runs, reproduce_table, table_engine
from lrformer.recipes.sharing import take_in_hand
from lrformer.recipes.table_engine import estimate_seconds, run_folder
from lrformer.recipes.table_record import (
    TableRecord,
    add_to_record,
    read_table_record,
    write_table_record,
)
from lrformer.recipes.table_run import Circumstances, failed_run
from lrformer.recipes.time_limit import TimeLimit
from lrformer.training import load_run, update_metrics
from lrformer.training.atomic_files import RunFileError
from tests.recipes.made_table import QUIET, made_run, small_table, write_arrays

HOW = Circumstances(runtime=QUIET)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("tiny") / "shades")


@pytest.fixture
def made(monkeypatch):
    """Runs are made up; the list says which, and an entry of `failures` is raised instead."""
    calls, failures = [], {}

    def make(planned, folder, how):
        calls.append((planned.row.name, planned.config.seed, folder))
        failure = failures.get((planned.row.name, planned.config.seed))
        if failure is not None:
            raise failure
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", make)
    return calls, failures


def test_a_table_on_three_classes_is_trained_evaluated_and_recorded(data, tmp_path):
    table = small_table(data)
    how = dataclasses.replace(HOW, ood=(f"{data}:ood-stripes",), command="made by a test")
    how = dataclasses.replace(
        how, evaluation=dataclasses.replace(how.evaluation, num_draws=5), batch_size=8
    )
    said = []
    result = reproduce_table(table, tmp_path, num_seeds=1, how=how, say=said.append)
    assert [standing.status for standing in result.standings] == ["finished"] * 2
    assert len(said) == 4
    record = read_table_record(tmp_path / "attentions.json", table="attentions", data=str(data))
    assert record == result.record
    for run in record.runs:
        test, unknown = run.figures["raw"].values()
        assert set(run.figures) == {"raw", "calibrated"}
        assert run.decision["temperature"] != 1
        (calibrated,) = run.figures["calibrated"].values()
        assert calibrated["probabilities"]["nll"] != test["probabilities"]["nll"]
        assert len(test["probabilities"]["accuracy"]) == 3
        assert "entropy" in unknown
        assert run.curve["epoch"] == [1, 2]
        assert set(run.outliers["entropy"]) == {"shuffled", "mixed", "inverted"}
        assert run.made["command"] == "made by a test"
        assert str(tmp_path) not in str(run)
    folder = tmp_path / "attentions" / "modern-pixels-32-epochs-2" / "lrsa" / "seed-0"
    assert load_run(folder).config.num_classes == 3
    assert not (folder / "evaluation").exists()


def test_every_row_of_a_seed_comes_before_the_next_seed(data):
    plan = plan_runs(small_table(data), num_seeds=2)
    assert [(run.row.name, run.config.seed) for run in plan] == [
        ("dot_product", 0),
        ("lrsa", 0),
        ("dot_product", 1),
        ("lrsa", 1),
    ]


def test_the_record_alone_tells_in_another_place_what_is_done(made, data, tmp_path):
    calls, _ = made
    record = tmp_path / "record.json"
    table = small_table(data)
    reproduce_table(table, tmp_path / "here", record_path=record, num_seeds=1, how=HOW)
    elsewhere = table.changed(lambda c: dataclasses.replace(c, root=str(tmp_path / "root")), {})
    reproduce_table(elsewhere, tmp_path / "there", record_path=record, num_seeds=2, how=HOW)
    assert [call[:2] for call in calls] == [
        ("dot_product", 0),
        ("lrsa", 0),
        ("dot_product", 1),
        ("lrsa", 1),
    ]
    assert str(tmp_path / "root") not in record.read_text()


def test_other_settings_are_other_runs(made, data, tmp_path):
    calls, _ = made
    for table in (small_table(data), small_table(data, epochs=3), small_table(data, alpha=7.0)):
        reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW)
    assert len(calls) == 3
    stripes = dataclasses.replace(HOW, ood=(f"{data}:ood-stripes",))
    reproduce_table(small_table(data), tmp_path, rows=["lrsa"], num_seeds=1, how=stripes)
    assert len(calls) == 4


def test_a_run_that_fails_is_recorded_and_the_rest_goes_on(made, data, tmp_path):
    calls, failures = made
    failures["dot_product", 0] = ArithmeticError("the loss is not finite\nmore")
    table = small_table(data)
    result = reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    assert [standing.status for standing in result.standings] == ["failed", "finished"]
    assert result.record.runs[0].error == "ArithmeticError: the loss is not finite"
    reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    assert len(calls) == 2
    failures.clear()
    again = reproduce_table(table, tmp_path, num_seeds=1, how=HOW, is_retrying=True)
    assert [standing.status for standing in again.standings] == ["finished"] * 2
    assert calls[2][2].name == "seed-0-again-1"
    assert [run.is_finished for run in again.record.runs] == [False, True, True]


def test_where_only_the_evaluation_failed_the_training_is_not_made_again(made, data, tmp_path):
    calls, failures = made
    failures["lrsa", 0] = ArithmeticError("in the evaluation")
    table = small_table(data)
    reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW)
    update_metrics(calls[0][2], "training", {"made": "by a test"})
    reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW, is_retrying=True)
    assert calls[0][2] == calls[1][2]


def test_a_run_that_was_begun_needs_only_the_rest_of_its_time(made, data, tmp_path, monkeypatch):
    calls, _ = made
    table = small_table(data)
    reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW)
    folder = calls[0][2].parent / "seed-1"
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text('{"stage": 0, "epoch": 0, "seconds": 9.0}\n')
    monkeypatch.setattr(TimeLimit, "left", 4.0)
    limited = {"rows": ["lrsa"], "how": HOW, "time_limit": 60.0}
    result = reproduce_table(table, tmp_path, num_seeds=3, **limited)
    assert [call[1] for call in calls] == [0, 1]
    assert result.stopped == "lrsa, seed 2 would not fit into the time that is left"


def test_a_users_mistake_stops_everything_and_is_not_recorded(made, data, tmp_path):
    _, failures = made
    failures["dot_product", 0] = ConfigError("the folder belongs to another run.")
    with pytest.raises(ConfigError, match="another run"):
        reproduce_table(small_table(data), tmp_path, how=HOW)
    assert not (tmp_path / "attentions.json").exists()


def test_three_equal_errors_in_a_row_stop_the_rest(made, data, tmp_path):
    calls, failures = made
    failures |= {(row, seed): OSError("gone") for row in ("dot_product", "lrsa") for seed in (0, 1)}
    result = reproduce_table(small_table(data), tmp_path, num_seeds=3, how=HOW)
    assert len(calls) == 3
    assert result.stopped is not None
    assert "3 runs in a row failed alike" in result.stopped


def test_a_lost_gpu_stops_the_rest_at_once(made, data, tmp_path):
    calls, failures = made
    failures["dot_product", 0] = RuntimeError("CUDA error: an illegal memory access")
    result = reproduce_table(small_table(data), tmp_path, how=HOW)
    assert len(calls) == 1
    assert "the GPU is lost" in str(result.stopped)


def test_ctrl_c_keeps_what_is_finished(made, data, tmp_path):
    calls, failures = made
    failures["lrsa", 0] = KeyboardInterrupt()
    table = small_table(data)
    with pytest.raises(KeyboardInterrupt):
        reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    failures.clear()
    reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    assert [call[0] for call in calls] == ["dot_product", "lrsa", "lrsa"]
    assert calls[1][2] == calls[2][2]


def test_a_run_that_would_not_fit_is_not_begun(made, data, tmp_path, monkeypatch):
    calls, _ = made
    # The made runs say that they took 11 seconds.
    monkeypatch.setattr(TimeLimit, "left", 11.0)
    result = reproduce_table(small_table(data), tmp_path, num_seeds=3, how=HOW, time_limit=60.0)
    assert len(calls) == 1
    assert result.stopped == "lrsa, seed 0 would not fit into the time that is left"


def test_a_run_that_is_too_long_for_any_limit_is_begun_and_stopped_in_time(
    made, data, tmp_path, monkeypatch
):
    def make(planned, folder, how):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(0.01)
        raise AssertionError("was not interrupted")

    table = small_table(data)
    plan = plan_runs(table, num_seeds=1)
    record = TableRecord(table="attentions", data=str(data)).add(
        made_run(plan[0], HOW, seconds=999)
    )
    write_table_record(tmp_path / "attentions.json", record)
    monkeypatch.setattr(table_engine, "make_run", make)
    result = reproduce_table(table, tmp_path, num_seeds=1, how=HOW, time_limit=0.5)
    assert result.stopped == "the time is over; the run in hand goes on with the same command"
    assert result.record == record


def test_a_limit_that_is_not_reached_interrupts_nobody():
    with TimeLimit(0.05) as limit:
        assert limit.admits(None)
        assert limit.admits(0.01)
        assert limit.admits(10.0)  # no limit of this length would do
    time.sleep(0.1)
    assert not limit.is_over
    assert TimeLimit(None).admits(1e9)


def test_an_estimate_comes_from_the_same_row_and_grows_with_the_epochs(data):
    table = small_table(data)
    plain, lrsa = plan_runs(table, num_seeds=1)
    record = TableRecord(table="attentions", data=str(data))
    assert estimate_seconds(plain, record) is None
    record = record.add(made_run(plain, seconds=10)).add(made_run(lrsa, seconds=30))
    assert estimate_seconds(plain, record) == pytest.approx(1.1 * 11)
    longer = plan_runs(small_table(data, epochs=4), num_seeds=1)[0]
    assert estimate_seconds(longer, record) == pytest.approx(1.1 * 61)


def test_listing_runs_nothing(made, data, tmp_path):
    calls, _ = made
    result = reproduce_table(small_table(data), tmp_path, num_seeds=1, how=HOW, is_listing=True)
    assert [standing.status for standing in result.standings] == ["missing", "missing"]
    assert not calls


def test_a_listing_of_a_record_needs_no_folder(made, data, tmp_path):
    table = small_table(data)
    path = tmp_path / "record.json"
    reproduce_table(table, tmp_path, record_path=path, rows=["lrsa"], num_seeds=1, how=HOW)
    listed = reproduce_table(table, None, record_path=path, num_seeds=1, how=HOW, is_listing=True)
    assert [standing.status for standing in listed.standings] == ["missing", "finished"]
    for given in ({"is_listing": True}, {"record_path": path}):
        with pytest.raises(ConfigError, match="is missing; only a list from a record"):
            reproduce_table(table, None, num_seeds=1, how=HOW, **given)


def hold(out, table, *names):
    """Return a block in which these runs are in other hands."""
    stack = ExitStack()
    for run in plan_runs(table):
        if run.name in names:
            folder = run_folder(out, table, run, num_failed=0)
            assert stack.enter_context(take_in_hand(folder))
    return stack


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

    def make(planned, folder, how):
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

    def make(planned, folder, how):
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

    def make(planned, folder, how):
        calls.append((planned.row.name, planned.config.seed, folder))
        entry = failed_run(lrsa, ArithmeticError("beside"), how)
        add_to_record(tmp_path / "attentions.json", entry, table="attentions", data=str(data))
        raise ArithmeticError("again")

    monkeypatch.setattr(table_engine, "make_run", make)
    reproduce_table(table, tmp_path, num_seeds=1, how=HOW, is_retrying=True)
    assert [call[0] for call in calls] == ["dot_product", "lrsa", "dot_product"]


def test_calls_side_by_side_make_every_run_once(made, data, tmp_path, monkeypatch):
    table, calls = small_table(data), []

    def make(planned, folder, how):
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ["lrsa", "l3"]}, "no row 'l3'"),
        ({"num_seeds": 0}, "at least 1"),
        ({"how": Circumstances(ood=("shvn",))}, "Did you mean 'svhn'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_trained(
    made, data, tmp_path, change, message
):
    calls, _ = made
    with pytest.raises(ConfigError, match=message):
        reproduce_table(small_table(data), tmp_path, **{"how": HOW, **change})
    assert not calls


def test_a_record_that_cannot_be_written_is_refused_before_anything_is_trained(
    made, data, tmp_path
):
    calls, _ = made
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="is a folder; give a file"):
        reproduce_table(small_table(data), out, record_path=tmp_path, how=HOW)
    with pytest.raises(RunFileError, match="cannot be written"):
        reproduce_table(small_table(data), out, record_path=Path("/dev/null/r.json"), how=HOW)
    assert not calls


def test_an_unknown_split_of_an_unknown_set_is_refused(made, data, tmp_path):
    how = Circumstances(ood=(f"{data}:ood-dots",))
    with pytest.raises(ConfigError, match="has no split 'ood-dots'"):
        reproduce_table(small_table(data), tmp_path, how=how)


def test_the_record_of_another_table_is_refused(tmp_path):
    path = tmp_path / "record.json"
    write_table_record(path, TableRecord(table="alpha", data="cifar10"))
    with pytest.raises(ConfigError, match="record of table 'alpha'"):
        read_table_record(path, table="ablation", data="cifar10")
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not the record of a table"):
        read_table_record(path, table="ablation", data="cifar10")
