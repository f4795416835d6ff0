"""The references of tables 1 and 2: WRN-28-10 as it is, and under SNGP, with their published settings."""

import dataclasses
from typing import Any

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.data import SHIFT_AND_FLIP
from lrformer.recipes.experiment import Experiment, augment_for
from lrformer.recipes.printed import SOTA, printed_on, printed_row
from lrformer.recipes.table import TABLES, Table, TableRow
from lrformer.training import OptimizerConfig, TrainConfig

PUBLISHED, COSINE = "published", "cosine"
EPOCHS = 250
BATCH = 256
# The rates are for batches of 128, and grow with the batch.
RATE_BATCH = 128
LEARNING_RATES = {"deterministic": 0.1, "sngp": 0.08}
LEARNING_RATES_CIFAR100 = {"deterministic": 0.1, "sngp": 0.04}
L2_PENALTIES = {"deterministic": 2e-4, "sngp": 3e-4}
FILTER_DROP_RATES = {"deterministic": 0.0, "sngp": 0.1}
STEPS_AT, STEP_FACTOR = (0.3, 0.6, 0.8), 0.2
MEAN_FIELD_FACTORS = {"cifar100": 7.5}
OTHER_MEAN_FIELD_FACTOR = 20.0
VALIDATION_CHOICE = (
    "a tenth of the training set is held out for the temperature; the figures are without it."
)
PUBLISHED_CHOICES = (
    f"both rows have {EPOCHS} epochs, as SNGP; the plain network is published with 200.",
    f"batches of {BATCH}, with the rates that belong to them; published are 512, on eight devices.",
    "initial weights are spread by what a layer feeds, and not by what it reads; a shortcut's branch has no third dropout.",
    VALIDATION_CHOICE,
)
COSINE_CHOICES = (
    "a cosine for the published steps of the learning rate; momentum without Nesterov's look ahead.",
    "the rate is taken for batches of 256; the reference scales its rates from batches of 128, which would double it.",
    "the plain network has SNGP's settings; its own are a base rate of .1, an L2 penalty of 2e-4 and 200 epochs.",
    "no dropout; SNGP's reference drops a tenth of the filters. Norms are not decayed; there they are.",
    "a shortcut reads the activated input, as in the first wide residual networks; there it reads what comes before the norm.",
    VALIDATION_CHOICE,
)


@TABLES.register("references")
def references(*, data: str = "cifar10", optimizer: str | None = None) -> Table:
    """Return the wide residual networks that the paper quotes, to show that baselines here are not weaker.

    Args:
        optimizer: `published`, each row with its own settings; or `cosine`, one half cosine and SNGP's rate for both, with
            which the first runs were made.
    """
    optimizer = optimizer or PUBLISHED
    make = {PUBLISHED: _published, COSINE: _with_cosine}
    if optimizer not in make:
        raise ConfigError(
            f"optimizer ('{optimizer}') must be one of {', '.join(make)}.{did_you_mean(optimizer, make)}"
        )
    factor = MEAN_FIELD_FACTORS.get(data, OTHER_MEAN_FIELD_FACTOR)
    rows = (
        ("deterministic", "WRN-28-10", {}),
        ("sngp", "WRN-28-10, SNGP", {"mean_field_factor": factor}),
    )
    return Table(
        name="references",
        title="Wide residual networks"
        + (" with their published settings" if optimizer == PUBLISHED else ""),
        data=data,
        rows=tuple(
            TableRow(
                name=name,
                title=title,
                experiment=make[optimizer](data, name, settings),
                printed=printed_row(SOTA, data, name),
            )
            for name, title, settings in rows
        ),
        place="table 2" if data == "cifar100" else "table 1",
        printed_on=printed_on(SOTA, data),
        baseline="deterministic",
        pivot="deterministic",
        num_seeds=1,
        variant={"optimizer": optimizer},
    )


def learning_rate_for(data: str, method: str) -> float:
    """Return the published base rate of a method, which is for batches of 128."""
    return (LEARNING_RATES_CIFAR100 if data == "cifar100" else LEARNING_RATES)[method]


def _published(data: str, method: str, settings: dict[str, Any]) -> Experiment:
    """Return a method with everything that its reference in uncertainty-baselines does."""
    plain = _with_cosine(data, method, settings)
    drop_rate = FILTER_DROP_RATES[method]
    optimizer = dataclasses.replace(
        plain.config.optimizer,
        lr=learning_rate_for(data, method) * BATCH / RATE_BATCH,
        weight_decay=_weight_decay(method),
        decays_vectors=True,
        nesterov=True,
        schedule="steps",
        steps_at=STEPS_AT,
        step_factor=STEP_FACTOR,
    )
    overrides = {
        "raw_shortcut": True,
        **({"filter_drop_rate": drop_rate} if drop_rate else {}),
    }
    config = dataclasses.replace(plain.config, optimizer=optimizer, model_overrides=overrides)
    return dataclasses.replace(plain, config=config, choices=PUBLISHED_CHOICES)


def _with_cosine(data: str, method: str, settings: dict[str, Any]) -> Experiment:
    return Experiment(
        name="references",
        config=TrainConfig(
            data=data,
            model="wide_resnet28_10",
            method=method,
            method_overrides=settings,
            epochs=EPOCHS,
            batch_size=BATCH,
            augment=augment_for(data, SHIFT_AND_FLIP),
            optimizer=OptimizerConfig(
                name="sgd",
                lr=learning_rate_for(data, "sngp"),
                weight_decay=_weight_decay("sngp"),
                warmup_epochs=1.0,
                clip_norm=None,
            ),
        ),
        source="uncertainty-baselines, WRN-28-10 on CIFAR",
        choices=COSINE_CHOICES,
    )


def _weight_decay(method: str) -> float:
    """Return the decay of a published penalty of l2 times the squared weights, whose gradient has a factor of two."""
    return 2 * L2_PENALTIES[method]
