"""A whole experiment as a value: what is trained, how often, and where it leaves its source."""

import dataclasses
from dataclasses import dataclass

from lrformer.core import ConfigError, Registry
from lrformer.data import DATASETS, PLAIN, AugmentConfig
from lrformer.training import TrainConfig

NUM_PAPER_SEEDS = 10


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One row of a table: a config that is trained once for each seed.

    Attributes:
        name: of the recipe.
        config: everything but the seed.
        source: where the settings are printed.
        choices: what the source leaves open or says twice, and what is taken here.
        num_seeds: how many runs make the row.
    """

    name: str
    config: TrainConfig
    source: str
    choices: tuple[str, ...] = ()
    num_seeds: int = NUM_PAPER_SEEDS

    def __post_init__(self) -> None:
        if self.num_seeds < 1:
            raise ConfigError(f"num_seeds ({self.num_seeds}) must be at least 1.")

    def runs(self) -> tuple[TrainConfig, ...]:
        """Return one config for each seed, counted from the config's own."""
        return seeded_runs(self.config, self.num_seeds)


def seeded_runs(config: TrainConfig, num_seeds: int) -> tuple[TrainConfig, ...]:
    """Return `config` with `num_seeds` consecutive seeds, its own first."""
    return tuple(with_seed(config, offset) for offset in range(num_seeds))


def with_seed(config: TrainConfig, offset: int) -> TrainConfig:
    """Return `config` with the seed that comes `offset` after its own."""
    return dataclasses.replace(config, seed=config.seed + offset)


def augment_for(data: str, augment: AugmentConfig) -> AugmentConfig:
    """Return a recipe's augmentation, or none where the data are points."""
    is_points = data in DATASETS and not DATASETS[data].is_image
    return PLAIN if is_points else augment


RECIPES: Registry = Registry("recipe")


def list_recipes() -> list[str]:
    """Return the names that `create_experiment` accepts."""
    return RECIPES.names()


def create_experiment(name: str, *, data: str, method: str = "lrformer") -> Experiment:
    """Return the experiment called `name` on `data` with `method`."""
    return RECIPES[name](data=data, method=method)
