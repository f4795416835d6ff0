"""The tables hold what the paper prints, and compare like with like."""

import dataclasses
import json
from pathlib import Path

import pytest

from lrformer.core import ConfigError, from_record
from lrformer.methods import METHODS
from lrformer.models import PRESETS, override
from lrformer.recipes import (
    TABLES,
    ablation,
    alpha_table,
    attentions,
    main_table,
    plan_runs,
    references,
)
from lrformer.recipes.optimization import shortened
from lrformer.recipes.table import describe_variant, table_columns, variant_slug
from lrformer.recipes.table_record import TableRecord

RECORDS = Path(__file__).parents[2] / "benchmarks" / "results"
ALL = [TABLES[name](data="cifar10") for name in TABLES.names()]
ROWS = [
    pytest.param(table, row, id=f"{table.name}-{row.name}") for table in ALL for row in table.rows
]


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_every_row_names_a_model_and_a_method_with_settings_that_exist(table, row):
    config = row.experiment.config
    override(PRESETS[config.model], config.model_overrides)
    METHODS[config.method].config_class(**config.method_overrides)
    assert config.data == table.data
    assert row.experiment.source


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_differs_from_the_plain_one_in_attention_and_method_alone(table, row):
    def shared(config):
        overrides = {
            key: value
            for key, value in config.model_overrides.items()
            if key not in ("attention", "alpha", "normalizer", "length_free")
        }
        return dataclasses.replace(
            config, model_overrides=overrides, method="", method_overrides={}
        )

    if table.name == "references":
        table = references(optimizer="cosine")  # published are settings that differ by row
        row = table.row(row.name)
    plain = table.row(table.baseline).experiment.config
    assert shared(row.experiment.config) == shared(plain)
    if "wide" not in plain.model:
        assert plain.model_overrides["attention"] == "dot_product"
    assert plain.method == "deterministic"


def test_the_printed_figures_are_those_of_the_paper():
    row = ablation().row("lrformer")
    assert {name: figure.value for name, figure in row.printed.items()} == {
        "accuracy": 0.8528,
        "nll": 0.4447,
        "auroc:svhn": 0.8500,
        "aupr:svhn": 0.9078,
    }
    assert attentions().row("scsa").printed["nll"].value == 0.626
    assert alpha_table(data="cifar100").row("alpha_100").printed["accuracy"].spread == 0.02
    assert main_table(data="cifar100").row("lrformer").printed["aupr:cifar10"].value == 0.777
    assert references().row("sngp").printed["ece"].value == 0.018


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_every_printed_figure_belongs_to_a_column(table, row):
    names = {column.name for column in table_columns(("svhn", "cifar100"))}
    assert set(row.printed) <= names


def test_other_data_have_no_printed_figures_and_figures_for_the_other_cifar_say_so():
    assert not any(row.printed for row in ablation(data="digits").rows)
    assert attentions(data="cifar10").printed_on == "cifar100"
    assert ablation(data="cifar100").printed_on == "cifar100"
    assert not ablation(data="cifar100").row("due").printed


@pytest.mark.parametrize(
    ("name", "optimizer", "lr"), [("modern", "adamw", 0.001), ("muon", "muon", 0.003)]
)
def test_the_papers_optimizer_and_those_of_today(name, optimizer, lr):
    paper = ablation().row("transformer").experiment
    other = ablation(optimizer=name).row("transformer").experiment
    assert (paper.config.optimizer.name, paper.config.batch_size) == ("sgd", 128)
    settings = other.config.optimizer
    assert (settings.name, settings.lr, other.config.batch_size) == (optimizer, lr, 512)
    assert settings.weight_decay == paper.config.optimizer.weight_decay
    assert not any("momentum" in choice for choice in other.choices)
    assert sum(f"{lr:g} with batch 512" in choice for choice in other.choices) == 1


@pytest.mark.parametrize(
    ("row", "data", "lr", "decay", "dropped"),
    [
        ("deterministic", "cifar10", 0.2, 4e-4, 0.0),
        ("sngp", "cifar10", 0.16, 6e-4, 0.1),
        ("sngp", "cifar100", 0.08, 6e-4, 0.1),
    ],
)
def test_the_references_have_their_published_settings(row, data, lr, decay, dropped):
    config = references(data=data).row(row).experiment.config
    optimizer = config.optimizer
    assert (optimizer.lr, optimizer.weight_decay) == pytest.approx((lr, decay))
    assert (optimizer.name, optimizer.momentum, optimizer.nesterov) == ("sgd", 0.9, True)
    assert (optimizer.schedule, optimizer.steps_at) == ("steps", (0.3, 0.6, 0.8))
    assert (optimizer.step_factor, optimizer.decays_vectors) == (0.2, True)
    assert optimizer.clip_norm is None
    assert (config.epochs, config.batch_size, config.warmup_epochs) == (250, 256, 1)
    model = override(PRESETS[config.model], config.model_overrides)
    assert (model.filter_drop_rate, model.raw_shortcut) == (dropped, True)


def test_the_first_runs_of_the_references_can_still_be_asked_for():
    record = json.loads((RECORDS / "cifar10-references.json").read_text(encoding="utf-8"))
    runs = from_record(TableRecord, record["record"]).runs
    table = references(optimizer="cosine")
    for run in runs:
        wanted = shortened(table.row(run.row).experiment.config, run.config.epochs)
        assert run.is_of(run.row, wanted, run.ood)
        assert run.variant["optimizer"] == "cosine"
    assert {run.row for run in runs} == {"deterministic", "sngp"}


def test_a_wrong_optimizer_of_the_references_is_refused():
    with pytest.raises(ConfigError, match=r"must be one of published, cosine.*'published'"):
        references(optimizer="publish")


def test_a_wrong_optimizer_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match="must be one of paper, modern, muon"):
        ablation(optimizer="adam")


def test_a_length_free_alpha_is_the_printed_one_at_the_printed_number_of_tokens():
    from lrformer.attention import LRSA

    free = alpha_table().row("free_100").experiment.config.model_overrides
    assert free["length_free"]
    assert free["alpha"] * 197**0.5 == pytest.approx(100)
    assert LRSA(8, 2, alpha=free["alpha"], length_free=True) is not None


def test_an_alpha_of_ones_own_reaches_the_rows_that_have_none():
    rows = {row.name: row.experiment.config.model_overrides for row in attentions(alpha=300.0).rows}
    assert (rows["lrsa"]["alpha"], rows["lrsa_100"]["alpha"]) == (300.0, 100.0)
    assert "lrsa_100" not in [row.name for row in attentions(alpha=100.0).rows]
    assert ablation(alpha=300.0).row("lrformer").experiment.config.model_overrides["alpha"] == 300
    assert "alpha" not in ablation(alpha=300.0).row("sngp").experiment.config.model_overrides


@pytest.mark.parametrize("optimizer", ["paper", "modern", "muon"])
def test_the_process_on_plain_attention_differs_from_lrformer_in_the_attention_alone(optimizer):
    table = ablation(optimizer=optimizer, alpha=100.0)
    plain, ours = (table.row(name).experiment.config for name in ("transformer_gp", "lrformer"))
    process = METHODS[plain.method].config_class(**plain.method_overrides)
    other = METHODS[ours.method].config_class(**ours.method_overrides)
    for field in dataclasses.fields(process):
        assert getattr(process, field.name) == getattr(other, field.name), field.name
    assert plain.model_overrides == table.row("transformer").experiment.config.model_overrides
    assert (other.head, other.spectral_bound) == ("gp", None)
    assert not table.row("transformer_gp").printed


def test_a_shortened_run_has_a_shorter_warm_up_and_says_that_it_is_shortened():
    config = ablation().row("transformer").experiment.config
    assert shortened(config, 100) == config
    assert shortened(config, 20).warmup_epochs == 2
    words = describe_variant({"optimizer": "paper", "epochs": 20, "shortened_from": 100})
    assert words == "optimizer `paper`, shortened to 20 of 100 epochs"
    assert describe_variant({"epochs": 1}) == "1 epoch"
    assert describe_variant({"epochs": 2}) == "2 epochs"
    assert describe_variant({"model": {"depth": 2, "norm": "pre"}}) == "model depth=2 norm=pre"


def test_folders_of_variants_are_plain_names():
    assert variant_slug({}) == "default"
    slug = variant_slug({"optimizer": "modern", "pixels": 32, "model": {"depth": 1, "a b/": "c/d"}})
    assert slug == "modern-pixels-32-depth-1-a_b_-c_d"


def test_a_wrong_row_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean 'transformer'"):
        ablation().row("transforme")


def test_long_runs_are_made_once_and_short_ones_three_times():
    seeds = {table.name: table.num_seeds for table in ALL}
    assert seeds == {"ablation": 3, "attentions": 3, "alpha": 3, "main": 1, "references": 1}
    assert ablation(pixels=224).num_seeds == 1
    assert len(plan_runs(main_table())) == len(main_table().rows)
    assert len(plan_runs(main_table(), num_seeds=2)) == 2 * len(main_table().rows)
