"""The engine makes what is missing, once, and loses nothing."""

import dataclasses
import time
from pathlib import Path

import pytest
import torch

from lrformer.core import ConfigError, NotFiniteError
from lrformer.recipes import plan_runs, reproduce_table, table_engine
from lrformer.recipes.table_record import (
    TableRecord,
    add_to_record,
    read_table_record,
    write_table_record,
)
from lrformer.recipes.table_run import Circumstances, first_folder
from lrformer.recipes.time_limit import TimeLimit
from lrformer.training import load_run, update_metrics
from lrformer.training.atomic_files import RunFileError
from lrformer.training.state import Position, write_state
from tests.recipes.made_table import QUIET, made_run, small_table, write_arrays

HOW = Circumstances(runtime=QUIET)


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


@pytest.mark.parametrize("kind", [ArithmeticError, NotFiniteError])
def test_a_run_that_fails_is_recorded_and_the_rest_goes_on(made, data, tmp_path, kind):
    calls, failures = made
    failures["dot_product", 0] = kind("the loss is not finite\nmore")
    table = small_table(data)
    result = reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    assert [standing.status for standing in result.standings] == ["failed", "finished"]
    assert result.record.runs[0].error == f"{kind.__name__}: the loss is not finite"
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


def test_more_unknown_sets_need_no_other_training_also_of_a_second_attempt(made, data, tmp_path):
    calls, failures = made
    failures["lrsa", 0] = ArithmeticError("the loss is not finite")
    table = small_table(data)
    reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW)
    failures.clear()
    reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW, is_retrying=True)
    stripes = dataclasses.replace(HOW, ood=(f"{data}:ood-stripes",))
    failures["lrsa", 0] = ArithmeticError("in the evaluation")
    update_metrics(calls[1][2], "training", {"made": "by a test"})
    reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=stripes)
    assert [call[2].name for call in calls] == ["seed-0", "seed-0-again-1", "seed-0-again-1"]


def test_what_failed_is_not_gone_on_with_where_more_unknown_sets_are_asked_for(
    made, data, tmp_path
):
    calls, failures = made
    failures["lrsa", 0] = ArithmeticError("the loss is not finite")
    for ood in ((), (f"{data}:ood-stripes",)):
        how = dataclasses.replace(HOW, ood=ood)
        reproduce_table(small_table(data), tmp_path, rows=["lrsa"], num_seeds=1, how=how)
    assert [call[2].name for call in calls] == ["seed-0", "seed-0-again-1"]


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


def test_what_is_wrong_with_the_folder_of_another_run_stops_everything(made, data, tmp_path):
    calls, failures = made
    other = tmp_path / "elsewhere" / "lrsa" / "seed-0"
    failures["dot_product", 0] = ConfigError(f"{other} is not empty.")
    with pytest.raises(ConfigError, match="is not empty"):
        reproduce_table(small_table(data), tmp_path, how=HOW)
    assert len(calls) == 1


def test_a_folder_of_other_things_stops_no_other_run(data, tmp_path):
    table = small_table(data, epochs=1)
    (run,) = plan_runs(table, rows=["dot_product"], num_seeds=1)
    folder = first_folder(tmp_path, table, run)
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    how = dataclasses.replace(HOW, evaluation=dataclasses.replace(HOW.evaluation, num_draws=5))
    said = []
    result = reproduce_table(table, tmp_path, num_seeds=1, how=how, say=said.append)
    assert [standing.status for standing in result.standings] == ["missing", "finished"]
    assert [entry.row for entry in result.record.runs] == ["lrsa"]
    assert f"{folder} is not empty" in result.skipped["dot_product, seed 0"]
    assert said[1].startswith("[1/2] dot_product, seed 0 is skipped: ")
    (folder / "thesis.txt").unlink()
    again = reproduce_table(table, tmp_path, num_seeds=1, how=how)
    assert [standing.status for standing in again.standings] == ["finished"] * 2
    assert not again.skipped


def test_a_damaged_file_of_one_run_stops_no_other_run(made, data, tmp_path):
    table = small_table(data)
    (run,) = plan_runs(table, rows=["dot_product"], num_seeds=1)
    folder = first_folder(tmp_path, table, run)
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text("{")
    result = reproduce_table(table, tmp_path, num_seeds=1, how=HOW)
    assert [standing.status for standing in result.standings] == ["missing", "finished"]
    assert "is not valid JSON" in result.skipped["dot_product, seed 0"]


def test_three_equal_errors_in_a_row_stop_the_rest(made, data, tmp_path):
    calls, failures = made
    failures |= {(row, seed): OSError("gone") for row in ("dot_product", "lrsa") for seed in (0, 1)}
    result = reproduce_table(small_table(data), tmp_path, num_seeds=3, how=HOW)
    assert len(calls) == 3
    assert result.stopped is not None
    assert "3 runs in a row failed alike" in result.stopped


def test_equal_errors_with_a_success_between_them_stop_nothing(made, data, tmp_path):
    calls, failures = made
    failures |= {("dot_product", seed): OSError("gone") for seed in (0, 1, 2)}
    result = reproduce_table(small_table(data), tmp_path, num_seeds=3, how=HOW)
    assert len(calls) == 6
    assert result.stopped is None


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
    def make(planned, folder, how, trained=None):
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


def test_what_comes_after_a_training_is_not_cut_off(made, data, tmp_path, monkeypatch):
    table = small_table(data)
    (run, _) = plan_runs(table, num_seeds=1)
    folder = first_folder(tmp_path, table, run)
    write_state(folder, Position(stage=1), {"model/weight": torch.ones(1)}, is_over=True)

    def make(planned, folder, how, trained=None):
        time.sleep(1.0)  # a fit that takes longer than the whole limit
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", make)
    options = {"rows": ["dot_product"], "num_seeds": 1, "how": HOW, "time_limit": 0.3}
    result = reproduce_table(table, tmp_path, **options)
    assert [standing.status for standing in result.standings] == ["finished"]


def test_what_another_process_records_last_is_in_the_record_that_comes_back(made, data, tmp_path):
    table = small_table(data)
    other, _ = plan_runs(table, num_seeds=1)

    def say(line):
        if "accuracy" in line:  # the only run of this call is recorded
            entry = made_run(other, HOW)
            add_to_record(tmp_path / "attentions.json", entry, table=table.name, data=table.data)

    result = reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=HOW, say=say)
    assert [run.row for run in result.record.runs] == ["lrsa", "dot_product"]


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
        with pytest.raises(ConfigError, match="is missing: give --out FOLDER"):
            reproduce_table(table, None, num_seeds=1, how=HOW, **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ["lrsa", "l3"]}, "no row 'l3'"),
        ({"num_seeds": 0}, "at least 1"),
        ({"how": Circumstances(ood=("shvn",))}, "Did you mean 'svhn'"),
        (
            {"how": Circumstances(ood=("other-classes",))},
            "trained on some of the classes; this one",
        ),
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


def test_what_is_finished_needs_no_device_and_no_unknown_set_any_more(
    made, data, tmp_path, monkeypatch
):
    calls, _ = made
    table, stripes = small_table(data), write_arrays(tmp_path / "stripes")
    how = dataclasses.replace(HOW, ood=(f"{stripes}:ood-stripes",))
    reproduce_table(table, tmp_path / "out", num_seeds=1, how=how)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for path in stripes.iterdir():
        path.unlink()
    gone = dataclasses.replace(how, runtime=dataclasses.replace(QUIET, device="cuda"))
    again = reproduce_table(table, tmp_path / "out", num_seeds=1, how=gone)
    assert [standing.status for standing in again.standings] == ["finished"] * 2
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        reproduce_table(table, tmp_path / "out", num_seeds=2, how=gone)
    assert len(calls) == 2


def test_an_unknown_split_of_an_unknown_set_is_refused(made, data, tmp_path):
    how = Circumstances(ood=(f"{data}:ood-dots",))
    with pytest.raises(ConfigError, match="has no split 'ood-dots'"):
        reproduce_table(small_table(data), tmp_path, how=how)


def test_classes_that_a_table_leaves_out_may_be_its_unknown_set(made, data, tmp_path):
    calls, _ = made
    table = small_table(data).changed(lambda c: dataclasses.replace(c, classes=(0, 1)), {})
    how = dataclasses.replace(HOW, ood=("other-classes",))
    reproduce_table(table, tmp_path, rows=["lrsa"], num_seeds=1, how=how)
    assert [call[0] for call in calls] == ["lrsa"]


def test_the_record_of_another_table_is_refused(tmp_path):
    path = tmp_path / "record.json"
    write_table_record(path, TableRecord(table="alpha", data="cifar10"))
    with pytest.raises(ConfigError, match="record of table 'alpha'"):
        read_table_record(path, table="ablation", data="cifar10")
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not the record of a table"):
        read_table_record(path, table="ablation", data="cifar10")
