"""A run that takes the weights of a finished one: the two differ in what is done after training alone."""

import dataclasses
import os
import shutil
from pathlib import Path

from lrformer.core import ConfigError
from lrformer.heads import FittedGP
from lrformer.methods import METHODS, Method
from lrformer.training.atomic_files import read_tensors
from lrformer.training.claim import AFTER_TRAINING, FROM_DATA, describe_change, first_difference
from lrformer.training.config import TrainConfig
from lrformer.training.metrics_file import is_finished, read_training
from lrformer.training.run_config import RunConfig, read_run_config
from lrformer.training.run_folder import LOG_FILE, MODEL_FILE, file_checksum, load_state

# Of a GP that is fitted afterwards: drawn from the seed and then scaled; what is new is scaled anew.
FITTED_PREFIX = "head.random_features."


def training_of(config: TrainConfig) -> TrainConfig:
    """Return `config` without what acts after training: runs for which it is the same can share their weights.

    Trained by itself each has the same weights to the bit, unless they differ in `num_random_features`, `convention`
    or `feature_scale`, which move the draws of the weights and of dropout.
    """
    return _without(config, _settings_after_training(config))


def check_weights_of(folder: Path, config: RunConfig) -> None:
    """Raise unless the run in `folder` is finished and was trained as `config` asks for."""
    there = read_run_config(folder)
    if not is_finished(folder):
        raise ConfigError(
            f"{folder} is not finished; run its train command again, and it goes on where it stopped."
        )
    known = read_training(folder).get("model")
    if known is not None and known != file_checksum(folder / MODEL_FILE):
        raise ConfigError(
            f"{folder / MODEL_FILE} does not hold the weights that its training ended with: it was damaged or replaced. "
            "Restore it from a copy, or train anew."
        )
    # With another head, that is what is to be said, and not which settings act where.
    free = _settings_after_training(there.train) | _settings_after_training(config.train)
    found = first_difference(
        *(dataclasses.replace(run, train=_without(run.train, free)) for run in (there, config))
    )
    if found is not None:
        name, before, now = found
        if name in FROM_DATA:
            raise ConfigError(
                f"the weights of {folder} were trained on other data: {describe_change(*found)} Put them back, or train "
                "anew."
            )
        afterwards = ", ".join(sorted(_settings_after_training(there.train) | {*AFTER_TRAINING}))
        raise ConfigError(
            f"the weights of {folder} cannot be taken: {name} is {before!r} there and {now!r} here, and acts in "
            f"training. What acts after it is {afterwards}; everything else has to be "
            "trained anew."
        )


def take_weights(method: Method, folder: Path) -> None:
    """Put what the run in `folder` has learned into `method`; what is fitted afterwards stays as it is."""
    weights, _ = read_tensors(folder / MODEL_FILE)
    afterwards = (FITTED_PREFIX,) if isinstance(getattr(method, "head", None), FittedGP) else ()
    learned = {name: value for name, value in weights.items() if not name.startswith(afterwards)}
    load_state(method, method.state_dict() | learned, where=str(folder / MODEL_FILE))


def take_log(folder: Path, out: Path) -> None:
    """Copy the log of a training to `out`."""
    if (folder / LOG_FILE).is_file():
        shutil.copyfile(folder / LOG_FILE, out / LOG_FILE)


def way_to(folder: Path, out: Path) -> str:
    """Return where the run in `folder` lies, seen from `out`: both may be moved together."""
    return os.path.relpath(folder.resolve(), out.resolve())


def _settings_after_training(config: TrainConfig) -> frozenset[str]:
    settings = METHODS[config.method].config_class(**config.method_overrides)
    return getattr(settings, "settings_after_training", frozenset())


def _without(config: TrainConfig, free: frozenset[str]) -> TrainConfig:
    kept = {name: value for name, value in config.method_overrides.items() if name not in free}
    usual = {name: getattr(TrainConfig, name) for name in AFTER_TRAINING}
    return dataclasses.replace(config, method_overrides=kept, root=None, **usual)
