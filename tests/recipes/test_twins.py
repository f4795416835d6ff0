"""Rows that differ in what is done after training alone are trained once."""

import dataclasses

import pytest

from lrformer.recipes import TABLES, plan_runs, reproduce_table, table_engine, table_run
from lrformer.recipes.table_engine import describe
from lrformer.recipes.table_record import TableRun
from lrformer.recipes.table_run import Circumstances, Trained, first_folder, run_folder
from lrformer.recipes.time_limit import TimeLimit
from lrformer.recipes.twins import find_trained
from lrformer.training import update_metrics
from lrformer.training.atomic_files import replace_file
from tests.recipes.made_table import QUIET, hold, made_run, small_main_table

HOW = Circumstances(runtime=QUIET)
HOW = dataclasses.replace(HOW, evaluation=dataclasses.replace(HOW.evaluation, num_draws=5))
UPPER, LOWER = "lrformer, seed 0", "lrformer_median, seed 0"


def folder_of(out, table, name):
    (run,) = (run for run in plan_runs(table, num_seeds=2) if run.name == name)
    return first_folder(out, table, run)


@pytest.fixture
def finished(monkeypatch):
    """Runs are made up and leave a finished folder; the list says which, and with whose weights."""
    calls = []

    def make(planned, folder, how, trained=None):
        calls.append((planned.name, trained))
        update_metrics(folder, "training", {"seconds": 1.0})
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", make)
    return calls


def test_weights_are_also_taken_from_a_second_attempt(tmp_path):
    table = TABLES["main"](data="cifar10")
    plan = {run.name: run for run in plan_runs(table, num_seeds=1)}
    second = run_folder(tmp_path, table, plan[UPPER], num_failed=1)
    update_metrics(second, "training", {})
    assert second.name == "seed-0-again-1"
    own = folder_of(tmp_path, table, LOWER)
    assert find_trained(tmp_path, table, plan[LOWER], own) == Trained(row="lrformer", folder=second)


def test_a_twin_whose_files_cannot_be_read_has_no_weights_to_give(tmp_path):
    table = TABLES["main"](data="cifar10")
    plan = {run.name: run for run in plan_runs(table, num_seeds=1)}
    upper, own = folder_of(tmp_path, table, UPPER), folder_of(tmp_path, table, LOWER)
    update_metrics(upper, "training", {})
    assert find_trained(tmp_path, table, plan[LOWER], own) is not None
    replace_file(upper / "metrics.json", b'{"training"')
    assert find_trained(tmp_path, table, plan[LOWER], own) is None


def test_in_the_main_table_rows_that_differ_after_training_are_twins_and_nothing_else(tmp_path):
    table = TABLES["main"](data="cifar10")
    plan = plan_runs(table, num_seeds=2)
    pairs = set()
    for number, source in enumerate(plan):
        out = tmp_path / str(number)
        update_metrics(first_folder(out, table, source), "training", {})
        for run in plan:
            own = first_folder(out, table, run)
            if (found := find_trained(out, table, run, own)) is not None:
                assert found.folder == first_folder(out, table, source)
                pairs.add((run.name, f"{found.row}, seed {source.config.seed}"))
    twins = (
        ("lrformer", "lrformer_median"),
        ("lrformer_gp", "lrformer_gp_variance"),
        ("transformer_gp", "transformer_gp_variance"),
    )
    assert pairs == {
        (f"{one}, seed {seed}", f"{other}, seed {seed}")
        for seed in (0, 1)
        for twin in twins
        for one, other in (twin, twin[::-1])
    }


def test_in_the_other_tables_every_row_is_trained_by_itself(finished, tmp_path, monkeypatch):
    for name in ("check_runs", "check_unknown_sets"):
        monkeypatch.setattr(table_engine, name, lambda *_: None)
    for name in TABLES.names():
        reproduce_table(TABLES[name](data="cifar10"), tmp_path, num_seeds=1, how=HOW)
    taken = [(run, trained.row) for run, trained in finished if trained is not None]
    assert taken == [
        ("lrformer_median, seed 0", "lrformer"),
        ("lrformer_gp_variance, seed 0", "lrformer_gp"),
        ("transformer_gp_variance, seed 0", "transformer_gp"),
    ]


def reproduce(table, out, **options):
    return reproduce_table(table, out, num_seeds=1, **{"how": HOW, **options})


def entry(result, row) -> TableRun:
    (found,) = (run for run in result.record.runs if run.row == row and run.is_finished)
    return found


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """Return each row as it comes out where it is the only one."""
    table, out = small_main_table(data), tmp_path_factory.mktemp("alone")
    return {
        row.name: entry(reproduce(table, out / row.name, rows=[row.name]), row.name)
        for row in table.rows
    }


def without_circumstances(run: TableRun) -> TableRun:
    times = ("seconds", "images_per_second", "weights_of")
    training = {name: value for name, value in run.training.items() if name not in times}
    return dataclasses.replace(run, training=training, seconds={}, made={})


@pytest.mark.parametrize(
    "order", [("lrformer", "lrformer_median"), ("lrformer_median", "lrformer")]
)
def test_a_twin_has_the_figures_of_a_run_that_was_trained_on_its_own(data, alone, tmp_path, order):
    table, said = small_main_table(data), []
    for row in order:
        result = reproduce(table, tmp_path, rows=[row], say=said.append)
    first, second = (entry(result, row) for row in order)
    for run in (first, second):
        assert without_circumstances(run) == without_circumstances(alone[run.row])
    assert first.figures != second.figures
    assert "weights_of" not in first.training
    assert second.training["weights_of"] == first.row
    assert second.seconds["training"] == first.seconds["training"]
    assert said[2] == f"[1/1] {order[1]}, seed 0 with the weights of {order[0]} ..."
    assert f"; weights of {order[0]}, " in said[3]
    assert "s training" not in said[3]


def test_whose_weights_they_are_is_also_said_where_the_evaluation_had_to_be_made_again(
    data, alone, tmp_path, monkeypatch
):
    table = small_main_table(data)
    reproduce(table, tmp_path, rows=["lrformer"])

    def fail(*_, **__):
        raise ArithmeticError("in the evaluation")

    with monkeypatch.context() as patched:
        patched.setattr(table_run, "evaluate_run", fail)
        failed = reproduce(table, tmp_path)
    assert [standing.status for standing in failed.standings] == ["finished", "failed"]
    again = entry(reproduce(table, tmp_path, is_retrying=True), "lrformer_median")
    assert again.training["weights_of"] == "lrformer"
    assert without_circumstances(again) == without_circumstances(alone["lrformer_median"])


def test_the_line_about_a_run_that_was_trained_has_its_seconds(alone):
    assert "s training (" in describe(alone["lrformer"])


def test_the_weights_of_a_finished_twin_are_taken_seed_by_seed(finished, data, tmp_path):
    table = small_main_table(data)
    reproduce_table(table, tmp_path, num_seeds=2, how=HOW)
    assert finished == [
        ("lrformer, seed 0", None),
        (LOWER, Trained(row="lrformer", folder=folder_of(tmp_path, table, UPPER))),
        ("lrformer, seed 1", None),
        (
            "lrformer_median, seed 1",
            Trained(row="lrformer", folder=folder_of(tmp_path, table, "lrformer, seed 1")),
        ),
    ]


@pytest.mark.parametrize(
    ("left", "is_above_finished"),
    [
        ("state/training.safetensors", False),
        ("state/training.safetensors", True),
        ("metrics.json", True),
    ],
)
def test_a_run_that_was_begun_goes_on_with_its_own_weights(
    finished, data, tmp_path, left, is_above_finished
):
    table = small_main_table(data)
    folder = folder_of(tmp_path, table, LOWER)
    replace_file(folder / left, b'{"training": {}}')
    if is_above_finished:
        update_metrics(folder_of(tmp_path, table, UPPER), "training", {})
    with hold(tmp_path, table, UPPER):
        assert reproduce(table, tmp_path).stopped is not None
    assert finished == [(LOWER, None)]


def test_what_was_stopped_while_it_took_weights_takes_them_again(finished, data, tmp_path):
    table = small_main_table(data)
    reproduce(table, tmp_path, rows=["lrformer"])
    folder = folder_of(tmp_path, table, LOWER)
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text('{"stage": 0, "epoch": 0, "seconds": 9.0}\n')
    reproduce(table, tmp_path)
    assert [trained is not None for _, trained in finished] == [False, True]


def test_a_row_waits_for_a_twin_above_it_in_other_hands(finished, data, tmp_path):
    table, said = small_main_table(data), []
    with hold(tmp_path, table, UPPER):
        result = reproduce(table, tmp_path, say=said.append)
    assert not finished
    assert said[1] == (
        "[2/2] lrformer_median, seed 0 waits for the weights of lrformer, which is in the hands of "
        "another process; skipped for now"
    )
    assert result.stopped == (
        f"other processes have in hand what is left ({UPPER}; {LOWER}). Run the same command again when they "
        "are finished, for what takes their weights"
    )


def test_weights_that_cannot_be_taken_are_done_without(data, tmp_path):
    table, said = small_main_table(data), []
    reproduce(table, tmp_path, rows=["lrformer"])
    replace_file(folder_of(tmp_path, table, UPPER) / "model.safetensors", b"damaged")
    result = reproduce(table, tmp_path, rows=["lrformer_median"], say=said.append)
    assert said[1].startswith("  not with the weights of lrformer: ")
    assert "model.safetensors" in said[1]
    assert [standing.status for standing in result.standings] == ["finished"]
    assert "weights_of" not in result.record.runs[-1].training


def test_weights_in_which_numbers_were_damaged_are_done_without_too(data, tmp_path):
    table, said = small_main_table(data), []
    reproduce(table, tmp_path, rows=["lrformer"])
    path = folder_of(tmp_path, table, UPPER) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    replace_file(path, bytes(content))
    result = reproduce(table, tmp_path, rows=["lrformer_median"], say=said.append)
    assert "does not hold the weights that its training ended with" in said[1]
    assert "weights_of" not in result.record.runs[-1].training


def test_a_row_does_not_wait_for_a_twin_below_it_nor_for_another_seed(finished, data, tmp_path):
    table = small_main_table(data)
    with hold(tmp_path, dataclasses.replace(table, num_seeds=2), LOWER, "lrformer, seed 1"):
        reproduce(table, tmp_path)
    assert finished == [(UPPER, None)]


def test_the_weights_of_a_twin_that_is_still_being_evaluated_are_taken(finished, data, tmp_path):
    table = small_main_table(data)
    above = folder_of(tmp_path, table, UPPER)
    update_metrics(above, "training", {"seconds": 1.0})
    with hold(tmp_path, table, UPPER):
        reproduce(table, tmp_path)
    assert finished == [(LOWER, Trained(row="lrformer", folder=above))]


@pytest.mark.parametrize(("left", "is_evaluated"), [(11.0, True), (1.2, True), (1.0, False)])
def test_a_run_that_need_not_be_trained_fits_where_its_evaluation_fits(
    finished, data, tmp_path, monkeypatch, left, is_evaluated
):
    # The made runs say that they took ten seconds, and their evaluation one.
    monkeypatch.setattr(TimeLimit, "left", left)
    table = small_main_table(data)
    result = reproduce_table(table, tmp_path, num_seeds=2, how=HOW, time_limit=60.0)
    assert [name for name, _ in finished] == ([UPPER, LOWER] if is_evaluated else [UPPER])
    name = "lrformer" if is_evaluated else "lrformer_median"
    seed = 1 if is_evaluated else 0
    assert result.stopped == f"{name}, seed {seed} would not fit into the time that is left"
