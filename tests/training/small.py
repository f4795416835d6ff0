"""A run that takes a second or two: a one-block transformer on the digits 0 to 3."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from lrformer.data import SHIFT_AND_FLIP, AugmentConfig
from lrformer.training import OptimizerConfig, RuntimeConfig, TrainConfig
from lrformer.training.atomic_files import read_tensors

QUIET = RuntimeConfig(device="cpu", quiet=True)

# Everything that has a state of its own: dropout, augmentation, average, momentum, posterior.
SMALL = TrainConfig(
    data="digits",
    classes=(0, 1, 2, 3),
    model="lrformer_digits",
    model_overrides={"depth": 1, "embed_dim": 16, "num_heads": 2, "proj_drop_rate": 0.1},
    method="lrformer",
    method_overrides={"num_random_features": 32},
    epochs=3,
    batch_size=64,
    augment=SHIFT_AND_FLIP,
    ema_decay=0.9,
    label_smoothing=0.1,
    optimizer=OptimizerConfig(lr=3e-3, weight_decay=0.05),
)
PLAIN = dataclasses.replace(
    SMALL,
    method="deterministic",
    method_overrides={},
    model_overrides={**SMALL.model_overrides, "proj_drop_rate": 0.0},
    augment=AugmentConfig(),
    ema_decay=None,
)


def small(base: TrainConfig = SMALL, **changes: Any) -> TrainConfig:
    """Return `base` with `changes`; those of the optimizer by their own names."""
    names = {field.name for field in dataclasses.fields(OptimizerConfig)}
    inner = {name: changes.pop(name) for name in list(changes) if name in names}
    return dataclasses.replace(
        base, optimizer=dataclasses.replace(base.optimizer, **inner), **changes
    )


def flat(folder: Path, name: str) -> torch.Tensor:
    """Return every number of a safetensors file of a run; single biases may be nothing but rounding."""
    tensors, _ = read_tensors(folder / name)
    return torch.cat([tensors[key].double().flatten() for key in sorted(tensors)])


def weights(folder: Path) -> bytes:
    """Return the files of weights and posterior, to compare runs to the bit."""
    names = ("model.safetensors", "posterior.safetensors", "decision.json")
    return b"".join((folder / name).read_bytes() for name in names)
