"""The main table (1, or 2 on CIFAR-100): the best single model, from scratch, in one forward pass; its recipe."""

import dataclasses
from typing import Any

from lrformer.core import ConfigError
from lrformer.data import AugmentConfig
from lrformer.recipes.experiment import RECIPES, Experiment, augment_for
from lrformer.recipes.paper import SAME_GP, plain_overrides
from lrformer.recipes.printed import SOTA, printed_on, printed_row
from lrformer.recipes.table import TABLES, Table, TableRow
from lrformer.training import OptimizerConfig, TrainConfig

MODEL = "lrformer_hybrid_32"
EPOCHS = 150
BATCH = 256
# Two thousand images of fifty thousand are enough for one temperature; the rest is trained on.
VAL_FRACTION = 0.04
AUGMENT = AugmentConfig(crop="shift", flip=True, policy="trivial", erase_probability=0.25)
OPTIMIZER = OptimizerConfig(name="muon", lr=3e-3, weight_decay=0.05, warmup_epochs=5.0)
EMA_DECAY = 0.999
DROP_PATH_RATE = 0.1
# Chosen on validation against the paper's normalizer with alpha 100 (benchmarks/main_search.py).
ATTENTION: dict[str, Any] = {"normalizer": "m", "alpha": 16.0}
# The features have no scale of their own, so that of the kernel is calibrated on them.
MEDIAN: dict[str, Any] = {"head": "fitted", "feature_scale": "calibrate"}
FITTED: dict[str, Any] = {**MEDIAN, "choose_length_scale": True}
CHOICES = (
    "the paper pretrains on ImageNet and fine-tunes at 224 pixels; this is from scratch, at 32.",
    "residual convolutions make 64 tokens of an image, and the tokens are pooled by a learned average.",
    "TrivialAugment and erasing, Muon, and an average of the weights.",
)
LRSA_CHOICE = "LRSA with the normalizer m of docs/lipschitz.md, alpha 16."
FITTED_CHOICES = (
    "the Gaussian process is fitted after training, on frozen features; `best_gp` trains it with the rest.",
    "its length-scale is the one that finds made outliers best; `lrformer_median` takes the median distance.",
)
TRAINED_CHOICE = "the Gaussian process is trained with the rest."
BY_VARIANCE: dict[str, Any] = {"temperature_by_variance": True}
BY_VARIANCE_CHOICE = (
    "the temperature grows with the variance, by as much as the validation split asks for."
)


@RECIPES.register("best")
def best(*, data: str = "cifar10", method: str = "lrformer") -> Experiment:
    """Return the recipe of the best single model for small images; other methods have plain attention."""
    own = ATTENTION if method == "lrformer" else plain_overrides(method)
    return Experiment(
        name="best",
        config=TrainConfig(
            data=data,
            val_fraction=VAL_FRACTION,
            model=MODEL,
            model_overrides={"drop_path_rate": DROP_PATH_RATE, **own},
            method=method,
            method_overrides=dict(FITTED) if method == "lrformer" else {},
            epochs=EPOCHS,
            batch_size=BATCH,
            augment=augment_for(data, AUGMENT),
            optimizer=OPTIMIZER,
            ema_decay=EMA_DECAY,
        ),
        source="section Comparison with State-of-the-art",
        choices=(*CHOICES, *((LRSA_CHOICE, *FITTED_CHOICES) if method == "lrformer" else ())),
        num_seeds=1,
    )


@RECIPES.register("best_gp")
def best_gp(*, data: str = "cifar10", method: str = "lrformer") -> Experiment:
    """Return `best` with a Gaussian process that is trained end to end: LRFormer's, or the same on plain attention."""
    if method not in ("lrformer", "dnn_gp"):
        raise ConfigError(
            f"method ('{method}') must be 'lrformer' or 'dnn_gp' (the same GP head on plain attention) in the recipe "
            "best_gp; the recipe best takes any method."
        )
    other = best(data=data, method=method)
    is_lrformer = method == "lrformer"
    overrides = {**({} if is_lrformer else SAME_GP), **BY_VARIANCE}
    lrsa = (LRSA_CHOICE,) if is_lrformer else ()
    return dataclasses.replace(
        _changed(other, method_overrides=overrides),
        name="best_gp",
        choices=(*CHOICES, *lrsa, TRAINED_CHOICE, BY_VARIANCE_CHOICE),
    )


@TABLES.register("main")
def main_table(*, data: str = "cifar10", alpha: float | None = None) -> Table:
    """Return LRFormer beside the plain transformer of the same recipe; `alpha` is the recipe's by default."""
    ours, trained = best(data=data), best_gp(data=data)
    plain = best_gp(data=data, method="dnn_gp")
    if alpha is not None:
        overrides = {**ours.config.model_overrides, "alpha": alpha}
        ours, trained = (_changed(row, model_overrides=overrides) for row in (ours, trained))
    rows = (
        ("transformer", "Transformer, same recipe", best(data=data, method="deterministic")),
        ("lrformer", "LRFormer, GP fitted after training", ours),
        (
            "lrformer_median",
            "LRFormer, GP fitted, median length-scale",
            _changed(ours, method_overrides=dict(MEDIAN)),
        ),
        ("lrformer_gp", "LRFormer, GP trained end to end", _one_temperature(trained)),
        (
            "lrformer_gp_variance",
            "LRFormer, GP trained end to end, temperature by variance",
            trained,
        ),
        ("transformer_gp", "Transformer, GP trained end to end", _one_temperature(plain)),
        (
            "transformer_gp_variance",
            "Transformer, GP trained end to end, temperature by variance",
            plain,
        ),
    )
    return Table(
        name="main",
        title="The best single model, from scratch",
        data=data,
        rows=tuple(
            TableRow(
                name=name,
                title=title,
                experiment=experiment,
                printed=printed_row(SOTA, data, "lrformer") if name.startswith("lrformer") else {},
            )
            for name, title, experiment in rows
        ),
        place="table 2" if data == "cifar100" else "table 1",
        printed_on=printed_on(SOTA, data),
        baseline="transformer",
        pivot="transformer",
        num_seeds=1,
        variant={} if alpha is None else {"alpha": alpha},
        is_calibrated=True,
    )


def _one_temperature(experiment: Experiment) -> Experiment:
    """Return `best_gp` with one temperature for all inputs."""
    overrides = experiment.config.method_overrides
    kept = {name: value for name, value in overrides.items() if name not in BY_VARIANCE}
    choices = tuple(choice for choice in experiment.choices if choice != BY_VARIANCE_CHOICE)
    return dataclasses.replace(_changed(experiment, method_overrides=kept), choices=choices)


def _changed(experiment: Experiment, **changes: Any) -> Experiment:
    return dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, **changes))
