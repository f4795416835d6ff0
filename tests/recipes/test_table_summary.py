"""Means, intervals and verdicts are those of the runs in the record."""

import dataclasses
import math

import pytest

from lrformer.metrics import seed_interval
from lrformer.recipes import ablation, attentions, main_table, plan_runs
from lrformer.recipes.matched_accuracy import match_accuracy
from lrformer.recipes.table_record import TableRecord
from lrformer.recipes.table_summary import runs_of, summarize, variants
from lrformer.training.score_choice import choose_score
from tests.recipes.made_table import made_run

TABLE = ablation()
ROWS = ("transformer", "lrformer")


def record_of(figures, *, table=TABLE, **more) -> TableRecord:
    """Return a record with one run for each row and seed; `figures` maps a row to the figures of its seeds."""
    record = TableRecord(table=table.name, data=table.data)
    num_seeds = len(next(iter(figures.values())))
    for run in plan_runs(table, rows=list(figures), num_seeds=num_seeds):
        given = figures[run.row.name][run.config.seed]
        record = record.add(made_run(run, **given, **more))
    return record


def test_a_cell_has_the_mean_its_interval_the_papers_figure_and_the_difference():
    values = [0.60, 0.62, 0.70]
    record = record_of({row: [{"nll": value} for value in values] for row in ROWS})
    (row,) = [row for row in summarize(TABLE, record) if row.row.name == "lrformer"]
    cell = row.cell("nll")
    assert cell.ours == seed_interval(values)
    assert cell.difference == pytest.approx(sum(values) / 3 - 0.4447)
    assert cell.bootstrap is None
    assert row.num_seeds == 3


@pytest.mark.parametrize("model", ["one", "another"])
def test_figures_of_two_evaluations_are_joined_only_where_they_are_of_the_same_weights(model):
    (planned,) = plan_runs(TABLE, rows=["transformer"], num_seeds=1)
    runs = []
    for name, unknown, accuracy in (("one", "svhn", 0.96), (model, "cifar100", 0.10)):
        run = made_run(planned, accuracy=accuracy, aupr=accuracy)
        known = {key: run.figures["raw"][key] for key in ("data/test", unknown)}
        training = {**run.training, "model": name}
        runs.append(
            dataclasses.replace(run, ood=(unknown,), figures={"raw": known}, training=training)
        )
    record = TableRecord(table=TABLE.name, data=TABLE.data, runs=tuple(runs))
    (found,) = runs_of(record, "transformer", TABLE.variant)
    assert found.figures["raw"]["data/test"]["probabilities"]["accuracy"][0] == 0.10
    assert found.ood == (("svhn", "cifar100") if model == "one" else ("cifar100",))
    assert ("svhn" in found.figures["raw"]) == (model == "one")


def test_with_one_seed_the_interval_is_that_of_the_bootstrap():
    record = record_of({row: [{"nll": 0.6}] for row in ROWS})
    cell = summarize(TABLE, record)[0].cell("nll")
    assert cell.bootstrap == (0.59, 0.61)
    assert cell.ours is not None
    assert cell.ours.low is None


@pytest.mark.parametrize(
    ("bootstrap", "spread"),
    [
        ((0.594, 0.610), " ± 0.008"),
        ((0.597, 0.610), " (0.597 to 0.610)"),
        ((0.590, 0.597), " (0.590 to 0.597)"),
        (None, ""),
    ],
)
def test_an_interval_with_a_long_side_is_written_with_both_ends(bootstrap, spread):
    record = record_of({row: [{"nll": 0.6}] for row in ROWS})
    cell = summarize(TABLE, record)[0].cell("nll")
    assert dataclasses.replace(cell, bootstrap=bootstrap).spread(3) == spread


@pytest.mark.parametrize(
    ("plain", "ours", "verdict"),
    [
        ([0.70, 0.72, 0.71], [0.50, 0.51, 0.52], "holds"),
        ([0.50, 0.51, 0.52], [0.70, 0.72, 0.71], "does not hold"),
        ([0.50, 0.60, 0.70], [0.60, 0.50, 0.69], "not significant"),
        ([0.7], [0.6], "holds (one seed)"),
        ([0.7], [0.7], "not significant"),
    ],
)
def test_a_claim_holds_where_the_sign_is_the_papers_and_the_interval_leaves_out_zero(
    plain, ours, verdict
):
    record = record_of(
        {"transformer": [{"nll": v} for v in plain], "lrformer": [{"nll": v} for v in ours]}
    )
    rows = {row.row.name: row for row in summarize(TABLE, record)}
    assert rows["lrformer"].cell("nll").claim == verdict
    assert rows["transformer"].cell("nll").claim is None
    assert rows["lrformer"].cell("ece").claim is None  # not printed


def test_figures_for_other_data_are_shown_and_not_subtracted():
    table = attentions(data="cifar10")
    record = record_of({"dot_product": [{}], "scsa": [{}]}, table=table)
    cell = {row.row.name: row for row in summarize(table, record)}["scsa"].cell("ece")
    assert cell.printed is not None
    assert cell.printed.value == 0.028
    assert cell.difference is None


def test_the_chosen_score_is_that_of_made_outliers_and_not_of_the_unknown_sets():
    outliers = {
        "entropy": {"mixed": 0.6, "inverted": 0.9},
        "variance": {"mixed": 0.8, "inverted": 0.8},
    }
    figures = {row: [{"aupr": 0.9, "aupr_variance": 0.1}] for row in ROWS}
    record = record_of(figures, outliers=outliers)
    row = summarize(TABLE, record)[0]
    assert row.score == "variance"
    assert row.cell("aupr:svhn").by_seed == {0: 0.9}
    assert row.cell("aupr:svhn:chosen").by_seed == {0: 0.1}
    assert choose_score([]) == "entropy"
    assert choose_score([{}]) == "entropy"


def test_a_score_that_one_run_lacks_is_not_chosen_and_all_runs_count():
    first = {"entropy": {"mixed": 0.6}, "variance": {"mixed": 0.9}, "msp": {"mixed": 0.7}}
    second = {"msp": {"mixed": 0.1}, "entropy": {"mixed": 0.6}}
    assert choose_score([first, second]) == "entropy"
    assert choose_score([first]) == "variance"


def test_unknown_sets_are_read_from_the_figures_that_have_them():
    table = main_table()
    runs = [made_run(run) for run in plan_runs(table, rows=["lrformer"], num_seeds=1)]
    test_alone = dict(list(runs[0].figures["raw"].items())[:1])
    only = {"raw": test_alone, "calibrated": runs[0].figures["calibrated"]}
    record = TableRecord(table="main", data="cifar10").add(
        dataclasses.replace(runs[0], figures=only)
    )
    row = {row.row.name: row for row in summarize(table, record)}["lrformer"]
    assert row.cell("aupr:svhn").by_seed == {0: 0.8}


def test_runs_of_an_older_recipe_do_not_enter_the_row():
    record = record_of({row: [{"nll": 0.6}] for row in ROWS})
    old = dataclasses.replace(
        record.runs[0], config=dataclasses.replace(record.runs[0].config, batch_size=7)
    )
    mixed = dataclasses.replace(record, runs=(dataclasses.replace(old, seed=1), *record.runs))
    assert summarize(TABLE, mixed)[0].num_seeds == 1


def test_of_two_recipes_under_one_name_the_later_one_is_the_row():
    (old,) = record_of({"lrformer": [{"nll": 0.6}]}).runs
    new = dataclasses.replace(old, seed=1, config=dataclasses.replace(old.config, batch_size=7))
    record = TableRecord(table=TABLE.name, data=TABLE.data, runs=(old, new))
    assert runs_of(record, "lrformer", TABLE.variant) == (new,)


def test_of_a_set_that_was_measured_twice_the_later_figures_count():
    first, again = (record_of({"lrformer": [{"aupr": aupr}]}).runs[0] for aupr in (0.6, 0.9))
    record = TableRecord(table=TABLE.name, data=TABLE.data, runs=(first, again))
    row = {row.row.name: row for row in summarize(TABLE, record)}["lrformer"]
    assert row.cell("aupr:svhn").by_seed == {0: 0.9}


def test_a_run_has_the_figures_of_all_its_evaluations():
    record = record_of({"transformer": [{}, {}, {}]})
    first = dataclasses.replace(record.runs[0], ood=("svhn", "cifar100"))
    alone = {kind: dict(list(sets.items())[:1]) for kind, sets in first.figures.items()}
    again = dataclasses.replace(first, ood=(), figures=alone)
    for runs in ((first, *record.runs[1:], again), (again, first, *record.runs[1:])):
        row = summarize(TABLE, dataclasses.replace(record, runs=runs))[0]
        assert row.num_seeds == 3
        assert sorted(row.cell("aupr:svhn").by_seed) == [0, 1, 2]
    parts = [
        dataclasses.replace(
            run,
            ood=(name,),
            figures={
                kind: {key: sets[key] for key in sets if key in (next(iter(sets)), name)}
                for kind, sets in run.figures.items()
            },
        )
        for name in ("svhn", "cifar100")
        for run in record.runs
    ]
    row = summarize(TABLE, dataclasses.replace(record, runs=tuple(parts)))[0]
    assert row.num_seeds == 3
    for name in ("svhn", "cifar100"):
        assert sorted(row.cell(f"aupr:{name}").by_seed) == [0, 1, 2]


def test_variants_are_kept_apart():
    modern = ablation(optimizer="modern")
    record = record_of({row: [{}] for row in ROWS})
    for run in plan_runs(modern, rows=["lrformer"], num_seeds=1):
        record = record.add(made_run(run))
    assert variants(record) == [TABLE.variant, modern.variant]
    made = {row.row.name: row.num_seeds for row in summarize(modern, record) if row.num_seeds}
    assert made == {"lrformer": 1}


def test_accuracy_is_matched_at_the_first_epoch_that_reaches_what_all_reach():
    plan = plan_runs(attentions(), rows=["dot_product", "lrsa"], num_seeds=1)
    curves = (
        {
            "epoch": [1, 2, 3],
            "accuracy": [0.50, 0.726, 0.8],
            "nll": [3, 2, 1],
            "ece": [0.3, 0.2, 0.1],
        },
        {
            "epoch": [1, 2, 3],
            "accuracy": [0.60, 0.70, 0.729],
            "nll": [6, 5, 4],
            "ece": [0.6, 0.5, 0.4],
        },
    )
    runs = {
        run.row.name: [made_run(run, curve=curve)] for run, curve in zip(plan, curves, strict=True)
    }
    accuracy, (plain, lrsa) = match_accuracy(runs)
    assert accuracy == 0.72
    assert (plain.epoch.mean, plain.nll.mean, plain.ece.mean) == (2, 2, 0.2)
    assert (lrsa.epoch.mean, lrsa.nll.mean) == (3, 4)
    assert match_accuracy(runs, accuracy=0.75)[1] == [match_accuracy(runs, accuracy=0.75)[1][0]]
    assert math.isnan(match_accuracy({})[0])


def test_the_common_accuracy_is_reached_where_rounding_says_a_little_less_and_training_fell_back():
    plan = plan_runs(attentions(), rows=["dot_product", "lrsa"], num_seeds=1)
    # 100 times 0.29 is 28.999999999999996.
    accuracies = ([0.1, 0.29, 0.2], [0.2, 0.28, 0.5])
    runs = {
        run.row.name: [
            made_run(
                run,
                curve={"epoch": [1, 2, 3], "accuracy": found, "nll": [3, 2, 1], "ece": [0, 0, 0]},
            )
        ]
        for run, found in zip(plan, accuracies, strict=True)
    }
    accuracy, rows = match_accuracy(runs)
    assert accuracy == 0.29
    assert [(row.row, row.epoch.mean, row.nll.mean) for row in rows] == [
        ("dot_product", 2, 2),
        ("lrsa", 3, 1),
    ]


def test_a_row_that_is_the_same_under_every_alpha_is_shown_under_each():
    record = record_of({"transformer": [{"nll": 0.7}], "lrformer": [{"nll": 0.6}]})
    sharper = ablation(alpha=7.0)
    assert sharper.variant != TABLE.variant
    (ours,) = plan_runs(sharper, rows=["lrformer"], num_seeds=1)
    record = record.add(made_run(ours, nll=0.5))
    found = {row.row.name: row for row in summarize(sharper, record)}
    assert found["transformer"].num_seeds == found["lrformer"].num_seeds == 1
    change = found["lrformer"].cell("nll").change
    assert change is not None
    assert change.mean == pytest.approx(-0.2)
    # Under the other alpha the row is what it was.
    (before,) = [row for row in summarize(TABLE, record) if row.row.name == "lrformer"]
    assert before.cell("nll").by_seed == {0: 0.6}


def test_the_variant_of_a_table_by_its_name_is_the_table_itself():
    record = record_of({"transformer": [{"nll": 0.7}], "lrformer": [{"nll": 0.6}]})
    sharper = ablation(alpha=7.0)
    assert summarize(sharper, record, variant=sharper.variant) == summarize(sharper, record)
    assert summarize(sharper, record)[0].num_seeds == 1
