"""Whole experiments as values: the paper's settings, by name."""

from lrformer.recipes.depth6_tables import ablation, alpha_table, attentions
from lrformer.recipes.experiment import (
    RECIPES,
    Experiment,
    create_experiment,
    list_recipes,
    seeded_runs,
)
from lrformer.recipes.main_table import best, best_gp, main_table
from lrformer.recipes.paper import (
    a3_finetune,
    a3_pretrain,
    alpha_for,
    depth6,
    depth6_native,
    depth12,
    depth12_native,
)
from lrformer.recipes.references import references
from lrformer.recipes.table import TABLES, Table, TableRow
from lrformer.recipes.table_engine import Reproduction, plan_runs, reproduce_table

__all__ = [
    "RECIPES",
    "TABLES",
    "Experiment",
    "Reproduction",
    "Table",
    "TableRow",
    "a3_finetune",
    "a3_pretrain",
    "ablation",
    "alpha_for",
    "alpha_table",
    "attentions",
    "best",
    "best_gp",
    "create_experiment",
    "depth6",
    "depth6_native",
    "depth12",
    "depth12_native",
    "list_recipes",
    "main_table",
    "plan_runs",
    "references",
    "reproduce_table",
    "seeded_runs",
]
