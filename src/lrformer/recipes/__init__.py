"""Whole experiments as values: the paper's settings, by name."""

from lrformer.recipes.experiment import (
    RECIPES,
    Experiment,
    create_experiment,
    list_recipes,
    seeded_runs,
)
from lrformer.recipes.paper import (
    a3_finetune,
    a3_pretrain,
    alpha_for,
    depth6,
    depth6_native,
    depth12,
    depth12_native,
)

__all__ = [
    "RECIPES",
    "Experiment",
    "a3_finetune",
    "a3_pretrain",
    "alpha_for",
    "create_experiment",
    "depth6",
    "depth6_native",
    "depth12",
    "depth12_native",
    "list_recipes",
    "seeded_runs",
]
