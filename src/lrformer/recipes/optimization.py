"""The ways in which the depth-6 tables are trained: as printed, and as it is done today."""

import dataclasses

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.recipes.experiment import Experiment
from lrformer.recipes.paper import MOMENTUM, WARMUP_EPOCHS, WEIGHT_DECAY
from lrformer.training import OptimizerConfig, TrainConfig

PAPER, MODERN, MUON = "paper", "modern", "muon"
LARGE_BATCH = 512
LARGE_BATCH_OPTIMIZERS = {
    MODERN: OptimizerConfig(lr=1e-3, weight_decay=WEIGHT_DECAY, warmup_epochs=WARMUP_EPOCHS),
    # The rate of the main table, which was chosen on validation for another model.
    MUON: OptimizerConfig(
        name="muon", lr=3e-3, weight_decay=WEIGHT_DECAY, warmup_epochs=WARMUP_EPOCHS
    ),
}


def with_optimizer(experiment: Experiment, name: str) -> Experiment:
    """Return a depth-6 experiment as printed (`paper`), or with AdamW (`modern`) or Muon (`muon`) and a large batch."""
    known = (PAPER, *LARGE_BATCH_OPTIMIZERS)
    if name not in known:
        raise ConfigError(
            f"optimizer ('{name}') must be one of {', '.join(known)}.{did_you_mean(name, known)}"
        )
    if name == PAPER:
        return experiment
    optimizer = LARGE_BATCH_OPTIMIZERS[name]
    title = {"adamw": "AdamW", "muon": "Muon"}[optimizer.name]
    choice = (
        f"{title} {optimizer.lr:g} with batch {LARGE_BATCH} and the paper's weight decay, for SGD .01 "
        "with batch 128."
    )
    return dataclasses.replace(
        experiment,
        config=dataclasses.replace(experiment.config, optimizer=optimizer, batch_size=LARGE_BATCH),
        choices=(*(other for other in experiment.choices if other != MOMENTUM), choice),
    )


def shortened(config: TrainConfig, epochs: int) -> TrainConfig:
    """Return the config with other epochs; its warm-up is then a tenth of them, at most five."""
    if epochs == config.epochs:
        return config
    optimizer = dataclasses.replace(config.optimizer, warmup_epochs=None)
    return dataclasses.replace(config, epochs=epochs, optimizer=optimizer)
