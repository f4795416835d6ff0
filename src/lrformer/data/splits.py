"""Cutting and narrowing: a seeded, stratified validation split, and the classes that are known."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Int

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.data.arrays import Split


def stratified_rows(
    labels: Int[np.ndarray, " b"],
    *,
    fraction: float,
    seed: int,
    where: str = "labels",
    class_names: Sequence[str] | None = None,
    needed: Collection[int] | None = None,
) -> tuple[Int[np.ndarray, " kept"], Int[np.ndarray, " cut"]]:
    """Return the rows that stay and the rows that are cut off, both ascending, each class in proportion.

    At least one sample of every class is cut and at least one stays; of a class that is not `needed` a single one stays.
    `where` and `class_names` are for the error.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"fraction ({fraction}) must lie strictly between 0 and 1; 0.1 is usual.")
    generator = np.random.default_rng(seed)
    cut = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if len(members) < 2 and needed is not None and int(label) not in needed:
            continue
        if len(members) < 2:
            name = int(label) if class_names is None else f"'{class_names[int(label)]}'"
            raise ConfigError(
                f"{where}: class {name} has one sample only; a validation split needs two of every class. Add one, leave "
                "the class out, or give a validation split of your own."
            )
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        cut.append(generator.permutation(members)[:count])
    rows = np.sort(np.concatenate(cut))
    return np.setdiff1d(np.arange(len(labels)), rows), rows


def select_classes(split: Split, classes: Sequence[int | str]) -> Split:
    """Return the samples of these classes alone, labeled 0, 1, ... in the order in which they are named.

    The rest of the classes make an unknown set: known and unknown are two calls.
    """
    indices = [class_index(split, entry) for entry in classes]
    if not indices or len(set(indices)) != len(indices):
        raise ConfigError(f"classes ({list(classes)}) must name at least one class, each once.")
    new_label = np.full(split.num_classes, -1, dtype=np.int64)
    new_label[indices] = np.arange(len(indices))
    rows = np.flatnonzero(new_label[split.y] >= 0)
    if len(rows) == 0:
        raise ConfigError(f"{split.name} has no sample of the classes {list(classes)}.")
    chosen = split.take(rows)
    return dataclasses.replace(
        chosen,
        y=new_label[chosen.y],
        class_names=tuple(split.class_names[index] for index in indices),
    )


def class_index(split: Split, entry: int | str) -> int:
    """Return the label of a class given by name or by number; a text that is no name may be a number."""
    if isinstance(entry, str):
        if entry in split.class_names:
            return split.class_names.index(entry)
        if not (entry.isascii() and entry.isdecimal()):
            raise ConfigError(
                f"{split.name} has no class '{entry}'.{did_you_mean(entry, split.class_names)}"
            )
        entry = int(entry)
    if not 0 <= entry < split.num_classes:
        raise ConfigError(
            f"class {entry} is outside 0..{split.num_classes - 1}, the classes of {split.name}."
        )
    return int(entry)
