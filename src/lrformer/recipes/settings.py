"""A table with other settings than its recipe's, and the options by which a command asks for them."""

import dataclasses
import inspect
import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrformer.core import ConfigError
from lrformer.recipes.optimization import shortened
from lrformer.recipes.table import TABLES, Table
from lrformer.recipes.table_run import NUM_DRAWS
from lrformer.training import TrainConfig

# What a table may be made with; the others are changes of the configs that it makes.
OF_TABLES = ("optimizer", "pixels", "alpha")
USUAL_UNKNOWN = {"cifar10": ("svhn", "cifar100"), "cifar100": ("svhn", "cifar10")}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user wants otherwise in every row of a table; None leaves it as the recipe has it.

    Attributes:
        optimizer: by name, where the table has a choice of them.
        pixels: side of the images, where the table has a choice.
        alpha: of the rows with LRSA that have none of their own.
        skip_unreadable: whether image files that cannot be decoded are left out.
        model_options: fields of the config of the model.
        root: where prepared data lie; no part of what a run is.
    """

    optimizer: str | None = None
    pixels: int | None = None
    alpha: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    channels: int | None = None
    weight_decay: float | None = None
    skip_unreadable: bool = False
    model_options: dict[str, Any] = field(default_factory=dict)
    root: Path | None = None


def make_table(name: str, data: str, settings: Settings) -> Table:
    """Return a table on `data` with `settings`, its baseline too.

    Raises:
        ConfigError: for a setting that the table does not have.
    """
    make = TABLES[name]
    given = {key: value for key in OF_TABLES if (value := getattr(settings, key)) is not None}
    known = inspect.signature(make).parameters
    for key in given:
        if key not in known:
            raise ConfigError(f"table '{name}' has no --{key}: its recipe fixes it. Leave it out.")
    return _changed(make(data=data, **given), settings)


def _changed(table: Table, settings: Settings) -> Table:
    published = max(row.experiment.config.epochs for row in table.rows)
    epochs = settings.epochs or published
    variant: dict[str, Any] = {"epochs": epochs}
    if epochs < published:
        variant["shortened_from"] = published
    for key in ("batch_size", "channels", "weight_decay"):
        if (value := getattr(settings, key)) is not None:
            variant[key] = value
    if settings.skip_unreadable:
        variant["skip_unreadable"] = True
    if settings.model_options:
        variant["model"] = settings.model_options

    def change(config: TrainConfig) -> TrainConfig:
        config = shortened(config, epochs)
        optimizer = config.optimizer
        if settings.weight_decay is not None:
            optimizer = dataclasses.replace(optimizer, weight_decay=settings.weight_decay)
        return dataclasses.replace(
            config,
            optimizer=optimizer,
            batch_size=settings.batch_size or config.batch_size,
            channels=config.channels if settings.channels is None else settings.channels,
            skip_unreadable=settings.skip_unreadable,
            model_overrides={**config.model_overrides, **settings.model_options},
            root=None if settings.root is None else str(settings.root),
        )

    return table.changed(change, variant)


def usual_unknown(data: str) -> tuple[str, ...]:
    """Return the unknown sets of the paper's tables: SVHN and the other CIFAR; none for other data."""
    return USUAL_UNKNOWN.get(data, ())


def command_of(
    table: Table,
    *,
    num_seeds: int,
    ood: tuple[str, ...],
    rows: tuple[str, ...] | None = None,
    draws: int = NUM_DRAWS,
) -> str:
    """Return the command that asks for a table, without the folders of this machine."""
    words = ["lrformer reproduce", table.name, "--data", Path(table.data).name]
    words += ["--seeds", str(num_seeds)]
    if rows is not None:
        words += ["--rows", ",".join(rows)]
    words += ood_option(table.data, ood)
    if draws != NUM_DRAWS:
        words += ["--draws", str(draws)]
    return " ".join([*words, *variant_options(table.variant)])


def ood_option(data: str, ood: tuple[str, ...]) -> list[str]:
    """Return the option by which other unknown sets than the usual ones are asked for."""
    if ood == usual_unknown(data):
        return []
    return ["--ood", ",".join(map(_without_folder, ood)) or "''"]


def _without_folder(spec: str) -> str:
    """Return a place without the folder that it lies in: `photos:ood-faces` of `my/photos/:ood-faces`."""
    place, colon, split = spec.rpartition(":")
    return f"{Path(place).name}:{split}" if colon else Path(spec).name


def variant_options(variant: dict[str, Any]) -> list[str]:
    """Return the options by which a command asks for the settings that the rows of a table share."""
    words = []
    for key, value in variant.items():
        if key == "model":
            words += [
                f"--model-option {shlex.quote(f'{name}={json.dumps(v)}')}"
                for name, v in value.items()
            ]
        elif value is True:
            words.append(f"--{key.replace('_', '-')}")
        elif key != "shortened_from":
            shown = f"{value:.12g}" if isinstance(value, float) else value
            words.append(f"--{key.replace('_', '-')} {shown}")
    return words
