"""How long a run may take is read off those that are recorded."""

import dataclasses

import pytest

from lrformer.recipes import plan_runs
from lrformer.recipes.estimate import estimate_seconds
from lrformer.recipes.table_record import TableRecord
from lrformer.recipes.table_run import Circumstances
from tests.recipes.made_table import QUIET, made_run, small_table

HOW = Circumstances(runtime=QUIET)


def test_an_estimate_comes_from_the_same_row_and_grows_with_the_epochs(data):
    table = small_table(data)
    plain, lrsa = plan_runs(table, num_seeds=1)
    record = TableRecord(table="attentions", data=str(data))
    assert estimate_seconds(plain, record) is None
    record = record.add(made_run(plain, seconds=10)).add(made_run(lrsa, seconds=30))
    assert estimate_seconds(plain, record) == pytest.approx(1.1 * 11)
    longer = plan_runs(small_table(data, epochs=4), num_seeds=1)[0]
    assert estimate_seconds(longer, record) == pytest.approx(1.1 * 61)


def test_a_row_without_runs_is_estimated_by_its_own_variant_and_where_it_has_none_by_any(data):
    table, sharper = small_table(data), small_table(data, alpha=7.0)
    assert table.variant != sharper.variant
    (plain, lrsa), (other, _) = (plan_runs(which, num_seeds=1) for which in (table, sharper))
    record = TableRecord(table="attentions", data=str(data)).add(made_run(other, seconds=500))
    assert estimate_seconds(lrsa, record) == pytest.approx(1.1 * 501)
    record = record.add(made_run(plain, seconds=10))
    assert estimate_seconds(lrsa, record) == pytest.approx(1.1 * 11)


def test_a_run_that_failed_says_nothing_of_how_long_one_takes(data):
    plain, lrsa = plan_runs(small_table(data), num_seeds=1)
    failed = dataclasses.replace(made_run(plain, seconds=500), error="ArithmeticError: lost")
    record = TableRecord(table="attentions", data=str(data), runs=(failed,))
    assert estimate_seconds(plain, record) is None
    record = record.add(made_run(lrsa, seconds=10))
    assert estimate_seconds(plain, record) == pytest.approx(1.1 * 11)


def test_a_run_that_takes_weights_is_estimated_by_evaluations_alone():
    table = small_table("cifar10")
    (run,) = plan_runs(table, rows=["lrsa"], num_seeds=1)
    record = TableRecord(
        table=table.name, data=table.data, runs=(made_run(run, HOW, seconds=100.0),)
    )
    assert estimate_seconds(run, record, is_trained=True) == pytest.approx(1.1)
    assert estimate_seconds(run, record) == pytest.approx(1.1 * 101)
