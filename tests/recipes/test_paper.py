"""The recipes hold what the paper prints, and say where it prints two things."""

import dataclasses

import pytest

from lrformer.core import ConfigError
from lrformer.data import PLAIN
from lrformer.methods import METHODS, list_methods
from lrformer.models import PRESETS, override
from lrformer.recipes import (
    a3_finetune,
    a3_pretrain,
    alpha_for,
    best,
    best_gp,
    create_experiment,
    depth6,
    depth12,
    list_recipes,
    main_table,
)
from lrformer.training.refit import training_of


@pytest.mark.parametrize(
    ("experiment", "optimizer", "lr", "batch_size"),
    [
        (depth6(), "sgd", 0.01, 128),
        (depth12(), "adamw", 5e-5, 32),
        (a3_pretrain(), "lamb", 0.006, 2048),
        (a3_finetune(), "lamb", 0.004, 2048),
    ],
)
def test_the_printed_settings(experiment, optimizer, lr, batch_size):
    config = experiment.config
    assert (config.optimizer.name, config.optimizer.lr) == (optimizer, lr)
    assert config.batch_size == batch_size
    assert (config.epochs, config.warmup_epochs, config.optimizer.weight_decay) == (100, 5.0, 0.05)
    assert experiment.source


@pytest.mark.parametrize("recipe", [depth12, a3_pretrain, a3_finetune])
def test_a_rate_that_is_printed_twice_is_named_with_the_one_that_is_taken(recipe):
    experiment = recipe()
    rate = f"{experiment.config.optimizer.lr:g}"
    assert any(rate in choice and "taken" in choice for choice in experiment.choices)


def test_alpha_depends_on_the_data():
    assert [alpha_for(data) for data in ("cifar10", "cifar100", "svhn")] == [1000, 500, 100]
    assert depth6(data="cifar100").config.model_overrides["alpha"] == 500
    assert depth6(method="sngp").config.model_overrides == {"attention": "dot_product"}


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_varies_images_and_no_points(name):
    assert create_experiment(name, data="two_moons").config.augment == PLAIN
    assert create_experiment(name, data="digits").config.augment != PLAIN


def test_ten_seeds_are_one_value():
    runs = depth6().runs()
    assert [run.seed for run in runs] == list(range(10))
    assert len({run.model for run in runs}) == 1


RECIPES_WITH_METHODS = [
    (name, method)
    for name in list_recipes()
    for method in (["lrformer", "dnn_gp"] if name == "best_gp" else list_methods())
]


@pytest.mark.parametrize(("name", "method"), RECIPES_WITH_METHODS)
def test_every_recipe_names_a_model_that_can_be_built(name, method):
    config = create_experiment(name, data="cifar10", method=method).config
    settings = override(PRESETS[config.model], config.model_overrides)
    size = 32 if "native" in name or name in ("best", "best_gp") else 224
    assert settings.tokens.img_size == size  # pyright: ignore[reportAttributeAccessIssue]
    depth = 6 if "depth6" in name or name in ("best", "best_gp") else 12
    assert settings.depth == depth  # pyright: ignore[reportAttributeAccessIssue]


def test_the_best_recipe_is_what_the_main_table_trains():
    rows = {row.name: row.experiment.config for row in main_table(data="svhn").rows}
    assert create_experiment("best", data="svhn").config == rows["lrformer"]
    assert best(data="svhn", method="deterministic").config == rows["transformer"]
    assert rows["lrformer"].method_overrides["choose_length_scale"]
    median = {"head": "fitted", "feature_scale": "calibrate"}
    assert rows["lrformer_median"].method_overrides == median
    assert create_experiment("best_gp", data="svhn").config == rows["lrformer_gp_variance"]
    assert best_gp(data="svhn", method="dnn_gp").config == rows["transformer_gp_variance"]
    assert rows["lrformer_gp"].method_overrides == {}
    for name in ("lrformer_gp", "transformer_gp"):
        # The same training: where both are made, the second takes the weights of the first.
        grown = rows[f"{name}_variance"]
        assert training_of(grown) == training_of(rows[name])
        by_variance = {"temperature_by_variance": True}
        assert grown.method_overrides == {**rows[name].method_overrides, **by_variance}
    process = METHODS["dnn_gp"].config_class(**rows["transformer_gp"].method_overrides)
    trained = METHODS["lrformer"].config_class()
    for field in dataclasses.fields(process):
        assert getattr(process, field.name) == getattr(trained, field.name)
    assert rows["transformer_gp"].model_overrides == rows["transformer"].model_overrides
    assert rows["lrformer_gp"].model_overrides == rows["lrformer"].model_overrides
    changed = main_table(alpha=4.0).row("lrformer").experiment.config.model_overrides
    assert changed == {**best().config.model_overrides, "alpha": 4.0}
    choices = {row.name: " ".join(row.experiment.choices) for row in main_table().rows}
    assert "LRSA" in choices["lrformer"]
    assert "LRSA" not in choices["transformer"]
    assert "LRSA" not in choices["transformer_gp"]
    assert "fitted after training" in choices["lrformer"]
    for name in ("lrformer_gp", "transformer_gp"):
        assert "fitted after training" not in choices[name]
        assert "trained with the rest" in choices[name]
        assert "grows with the variance" not in choices[name]
        assert "grows with the variance" in choices[f"{name}_variance"]


def test_a_process_trained_end_to_end_is_of_two_methods_alone():
    with pytest.raises(ConfigError, match=r"method \('sngp'\) must be 'lrformer' or 'dnn_gp'"):
        best_gp(method="sngp")


def test_a_wrong_recipe_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean 'depth6'"):
        create_experiment("depth_6", data="cifar10")
    with pytest.raises(ConfigError, match="pixels"):
        depth6(pixels=64)


@pytest.mark.parametrize("pixels", [32, 224])
def test_due_on_a_transformer_starts_at_a_draw_and_says_so(pixels: int) -> None:
    experiment = depth6(method="due", pixels=pixels)
    assert experiment.config.method_overrides == {"initial_posterior": "draw"}
    assert any("DUE's posterior" in choice for choice in experiment.choices)
    assert not any("DUE" in choice for choice in depth6(method="sngp", pixels=pixels).choices)
