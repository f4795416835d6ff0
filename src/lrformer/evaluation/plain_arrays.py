"""Predictions of any other model, from files of arrays: `.npy` with probabilities and labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lrformer.core import ConfigError
from lrformer.data.cache import load_array
from lrformer.evaluation.conventions import EvaluationConfig
from lrformer.evaluation.predictions import Predictions, from_arrays
from lrformer.evaluation.results import Results


def evaluate_arrays(
    probs: str | Path,
    labels: str | Path,
    *,
    ood: Sequence[str] = (),
    config: EvaluationConfig | None = None,
) -> Results:
    """Return the results of another model from its probabilities on a test set and on unknown sets.

    Args:
        probs: a `.npy` file, (samples, classes), or (members, samples, classes) of an ensemble.
        labels: a `.npy` file of integers.
        ood: `.npy` files of probabilities on unknown sets, each as `PATH` or `NAME=PATH`.
    """
    test = from_arrays(_read(probs), _read(labels), name=Path(probs).stem)
    unknown: dict[str, Predictions] = {}
    for spec in ood:
        name, path = _parse(spec)
        if name in unknown:
            raise ConfigError(f"two OOD sets are named '{name}'; name them as NAME=PATH.")
        unknown[name] = from_arrays(_read(path), name=name)
    about: Mapping[str, Any] = {
        "probabilities": str(probs),
        "labels": str(labels),
        **{f"unknown: {name}": path for name, path in map(_parse, ood)},
    }
    return Results.of(test, ood=unknown, config=config, about=dict(about))


def _parse(spec: str) -> tuple[str, str]:
    """Return name and path of `NAME=PATH` or `PATH`; a file whose name has an equals sign is still a file."""
    name, equals, path = spec.partition("=")
    if equals and name and not Path(spec).is_file():
        return name, path
    return Path(spec).stem, spec


def _read(path: str | Path) -> np.ndarray:
    return load_array(Path(path), mmap_mode=None)
