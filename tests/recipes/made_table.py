"""A table of two rows on a folder of three tiny classes, and runs of it that nobody trained."""

import dataclasses
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from lrformer.data import AugmentConfig
from lrformer.recipes import attentions, main_table, plan_runs
from lrformer.recipes.sharing import take_in_hand
from lrformer.recipes.table import Table
from lrformer.recipes.table_record import TableRun, without_place
from lrformer.recipes.table_run import Circumstances, PlannedRun, first_folder
from lrformer.training import RuntimeConfig

QUIET = RuntimeConfig(device="cpu", quiet=True)
CLASSES = 3
SMALL = {"depth": 1, "embed_dim": 8, "num_heads": 2, "img_size": 8, "patch_size": 4}


def write_arrays(folder: Path) -> Path:
    """Return a folder of 8-pixel images of three brightnesses, with unknown stripes beside it."""
    generator = np.random.default_rng(0)
    for split, number in (("train", 48), ("test", 12), ("ood-stripes", 12)):
        labels = np.arange(number) % CLASSES
        shades = 40 + 80 * labels[:, None, None, None]
        images = generator.normal(shades, 20, (number, 8, 8, 1))
        if split.startswith("ood"):
            images[:, ::2] = 255
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{split}-x.npy", images.clip(0, 255).astype(np.uint8))
        np.save(folder / f"{split}-y.npy", labels.astype(np.int64))
    return folder


def small_table(data: Path | str, *, epochs: int = 2, **settings) -> Table:
    """Return the attentions on `data` with a model that trains in a second."""
    table = attentions(data=str(data), **settings)
    changed = table.changed(
        lambda config: dataclasses.replace(
            config,
            epochs=epochs,
            batch_size=8,
            model_overrides={**config.model_overrides, **SMALL},
            optimizer=dataclasses.replace(config.optimizer, warmup_epochs=None),
        ),
        {"epochs": epochs},
    )
    rows = tuple(row for row in changed.rows if row.name in ("dot_product", "lrsa"))
    return dataclasses.replace(changed, rows=rows)


def small_main_table(data: Path | str) -> Table:
    """Return the rows of the main table whose process is fitted after training, with a model that trains in a second."""
    small = {"depth": 1, "embed_dim": 8, "num_heads": 2, "proj_drop_rate": 0.1}
    changed = main_table(data=str(data)).changed(
        lambda config: dataclasses.replace(
            config,
            epochs=2,
            batch_size=8,
            val_fraction=0.25,
            model="lrformer_digits",
            model_overrides=small,
            method_overrides={**config.method_overrides, "num_random_features": 64},
            augment=AugmentConfig(),
            optimizer=dataclasses.replace(config.optimizer, warmup_epochs=None),
        ),
        {"epochs": 2},
    )
    rows = tuple(row for row in changed.rows if row.name in ("lrformer", "lrformer_median"))
    return dataclasses.replace(changed, rows=rows, baseline="lrformer", pivot="lrformer")


def hold(out: Path, table: Table, *names: str) -> ExitStack:
    """Return a block in which these runs are in other hands."""
    stack = ExitStack()
    for run in plan_runs(table):
        if run.name in names:
            folder = first_folder(out, table, run)
            assert stack.enter_context(take_in_hand(folder))
    return stack


def made_run(
    planned: PlannedRun,
    how: Circumstances | None = None,
    *,
    seconds: float = 10.0,
    curve: dict[str, list[float]] | None = None,
    outliers: dict[str, dict[str, float]] | None = None,
    **figures: float,
) -> TableRun:
    """Return a finished run with these figures; `aupr_variance` is that of the variance on SVHN."""
    given = {"accuracy": 0.8, "nll": 0.5, "ece": 0.05, "auroc": 0.7, "aupr": 0.8, **figures}

    def interval(name: str) -> list[float | None]:
        return [given[name], given[name] - 0.01, given[name] + 0.01]

    def detection(aupr: str) -> dict[str, list[float | None]]:
        return {"auroc": interval("auroc"), "aupr_ood_positive": interval(aupr)}

    given.setdefault("aupr_variance", given["aupr"])
    evaluation = {
        "data/test": {
            "probabilities": {
                "accuracy": interval("accuracy"),
                "nll": interval("nll"),
                "ece_equal_width": interval("ece"),
                "ece_equal_mass": interval("ece"),
            }
        },
        **{
            name: {
                "probabilities": {"overconfidence_mean_confidence": interval("accuracy")},
                "entropy": detection("aupr"),
                "variance": detection("aupr_variance"),
            }
            for name in ("svhn", "cifar100")
        },
    }
    return TableRun(
        row=planned.row.name,
        seed=planned.config.seed,
        variant=planned.variant,
        config=without_place(planned.config),
        ood=how.ood if how is not None else (),
        figures={"raw": evaluation, "calibrated": evaluation},
        curve=curve or {},
        outliers=outliers or {"entropy": {"mixed": 0.6}, "variance": {"mixed": 0.7}},
        training={
            "images_per_second": 100.0,
            "validation": {"accuracy": given["accuracy"], "nll": given["nll"] + 0.1},
        },
        seconds={"training": seconds, "evaluation": 1.0},
        made={"device": "cpu", "torch": "2", "source": "abc"},
    )
