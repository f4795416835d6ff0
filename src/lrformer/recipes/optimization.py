"""The two ways in which the depth-6 tables are trained: as printed, and as it is done today."""

import dataclasses

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.recipes.experiment import Experiment
from lrformer.recipes.paper import MOMENTUM, WARMUP_EPOCHS, WEIGHT_DECAY
from lrformer.training import OptimizerConfig, TrainConfig

PAPER, MODERN = "paper", "modern"
MODERN_LR = 1e-3
MODERN_BATCH = 512
MODERN_CHOICE = (
    f"AdamW {MODERN_LR:g} with batch {MODERN_BATCH} and the paper's weight decay, for SGD .01 "
    "with batch 128."
)


def with_optimizer(experiment: Experiment, name: str) -> Experiment:
    """Return a depth-6 experiment as printed (`paper`), or with AdamW and a large batch (`modern`)."""
    if name not in (PAPER, MODERN):
        raise ConfigError(
            f"optimizer ('{name}') must be '{PAPER}' or '{MODERN}'."
            f"{did_you_mean(name, (PAPER, MODERN))}"
        )
    if name == PAPER:
        return experiment
    optimizer = OptimizerConfig(
        lr=MODERN_LR, weight_decay=WEIGHT_DECAY, warmup_epochs=WARMUP_EPOCHS
    )
    return dataclasses.replace(
        experiment,
        config=dataclasses.replace(experiment.config, optimizer=optimizer, batch_size=MODERN_BATCH),
        choices=(
            *(choice for choice in experiment.choices if choice != MOMENTUM),
            MODERN_CHOICE,
        ),
    )


def shortened(config: TrainConfig, epochs: int) -> TrainConfig:
    """Return the config with other epochs; its warm-up is then a tenth of them, at most five."""
    if epochs == config.epochs:
        return config
    optimizer = dataclasses.replace(config.optimizer, warmup_epochs=None)
    return dataclasses.replace(config, epochs=epochs, optimizer=optimizer)
