"""Whether an exported file says what its run says: on made-up inputs, in batches of several sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from lrformer.core import LRFormerError, NotFiniteError
from lrformer.evaluation.exported_predictor import name_outputs
from lrformer.training import Run

BATCH_SIZES = (1, 3, 8)
# How far each output may be off, over its size (see `_size`). Rounding to 32 bits moves most by a hundredth of this;
# where random features see phases of a thousand, variance and logits of the run itself are off by a tenth.
TOLERANCE = {"probs": 1e-4, "logits": 1e-3, "uncertainty": 1e-3, "variance": 1e-2}
# Sizes below this count as this: an entropy is a sum of differences of logits, and no better than these.
_LEAST_SIZE = 1e-2

Outputs = dict[str, np.ndarray]


class DisagreementError(LRFormerError, RuntimeError):
    """An exported file that does not say what its run says; it is not kept."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far an exported file is from its run, at most over all inputs that were compared.

    Attributes:
        num_inputs: how many were compared.
        differences: of each output by its name, over its size: of `probs` the difference itself, of `logits` over the
            largest of the input, of `uncertainty` over itself or the threshold, of `variance` over itself.
        num_flags: inputs whose flag differs, though their uncertainty is not at the threshold.
    """

    num_inputs: int
    differences: dict[str, float]
    num_flags: int

    @property
    def is_close(self) -> bool:
        """Whether the file is off by no more than `TOLERANCE`, and no flag differs."""
        is_within = (self.differences[name] <= TOLERANCE[name] for name in self.differences)
        return all(is_within) and self.num_flags == 0

    def describe(self) -> str:
        """Return the differences in words."""
        found = (f"{name} {value:.1g}" for name, value in self.differences.items())
        return f"largest differences on {self.num_inputs} made-up inputs: {', '.join(found)}; flags that differ: {self.num_flags}"


def check_agreement(run: Run, predict: Callable[[np.ndarray], Outputs], *, seed: int) -> Agreement:
    """Return how far `predict` is from `run` on made-up inputs.

    Raises:
        DisagreementError: when outputs are missing or not finite, or of another form.
        NotFiniteError: when the run itself gives numbers that are not finite.
    """
    batches = example_inputs(run, num_inputs=sum(BATCH_SIZES), seed=seed).split(BATCH_SIZES)
    expected = _join([run_outputs(run, batch) for batch in batches])
    if not all(np.isfinite(values).all() for values in expected.values()):
        raise NotFiniteError(
            f"{run.path} gives numbers that are not finite for inputs of noise, and so would a file made of it; train it anew."
        )
    actual = _join([predict(batch.numpy()) for batch in batches])
    return compare(actual, expected, threshold=run.threshold)


def run_outputs(run: Run, inputs: Shaped[Tensor, "b ..."]) -> Outputs:
    """Return what `run` itself says, under the names of the outputs of a file."""
    outputs = name_outputs(run, run.predict(inputs))
    return {name: value.cpu().numpy() for name, value in outputs.items()}


def compare(actual: Outputs, expected: Outputs, *, threshold: float) -> Agreement:
    """Return how far the outputs of a file are from the `expected` ones of its run."""
    if wrong := [name for name in expected if not _has_form(actual.get(name), expected[name])]:
        raise DisagreementError(
            f"the file's {wrong[0]} are missing, not finite, or of another shape or type than the run's; it is not kept."
        )
    sizes = {name: _size(name, expected[name], threshold) for name in TOLERANCE if name in expected}
    differences = {
        name: float((np.abs(actual[name] - expected[name]) / size).max())
        for name, size in sizes.items()
    }
    allowed = TOLERANCE["uncertainty"] * sizes["uncertainty"]
    is_clear = np.abs(expected["uncertainty"] - threshold) > allowed
    differs = actual["in_distribution"] != expected["in_distribution"]
    return Agreement(
        num_inputs=len(is_clear), differences=differences, num_flags=int((differs & is_clear).sum())
    )


def _has_form(found: np.ndarray | None, expected: np.ndarray) -> bool:
    """Return whether `found` is there, of the shape and type of `expected`, and finite."""
    return (
        found is not None
        and found.shape == expected.shape
        and found.dtype == expected.dtype
        and bool(np.isfinite(found).all())
    )


def _size(name: str, expected: np.ndarray, threshold: float) -> np.ndarray:
    """Return what a difference of this output is measured against."""
    if name == "probs":
        return np.ones_like(expected)
    size = np.abs(expected)
    if name == "logits":
        size = size.max(axis=1, keepdims=True)
    elif name == "uncertainty":
        size = np.maximum(size, abs(threshold))
    return np.maximum(size, _LEAST_SIZE)


def _join(parts: Sequence[Outputs]) -> Outputs:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def example_inputs(run: Run, *, num_inputs: int, seed: int) -> Shaped[Tensor, "b ..."]:
    """Return made-up raw inputs for `run`: half of them plain, half of them like nothing in its data, mixed.

    Images are soft patches of color, and noise; points lie among the training data, and far away.
    """
    generator = torch.Generator().manual_seed(seed)
    channels, size = run.config.channels, run.config.img_size
    is_plain = torch.randperm(num_inputs, generator=generator) < num_inputs // 2
    if size is None:
        points = torch.randn(num_inputs, channels, generator=generator)
        points[~is_plain] *= 10
        return points * torch.tensor(run.config.std) + torch.tensor(run.config.mean)
    shape = (num_inputs, size, size, channels)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    patches = 255 * torch.rand(int(is_plain.sum()), channels, 4, 4, generator=generator)
    soft = nn.functional.interpolate(patches, (size, size), mode="bilinear")
    images[is_plain] = soft.permute(0, 2, 3, 1).to(torch.uint8)
    return images
