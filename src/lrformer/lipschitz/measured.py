"""What is seen at given inputs: local constants and distances kept. Lower bounds, never certificates."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp

from lrformer.core import ConfigError


def local_constant(
    function: Callable[[Tensor], Tensor],
    x: Float[Tensor, "b ..."],
    *,
    num_steps: int = 20,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " b"]:
    """Return a lower bound on |J(x)|_2 for each sample, by power iteration on J'J with jvp and vjp.

    `function` maps a batch to a batch and treats samples independently (evaluation mode), so one
    product serves the whole batch. Fused attention kernels have no forward derivative: switch the
    model to the reference backend first.

    Args:
        batch_size: samples per pass; by default all at once.
        generator: where the first directions come from; it must live on the device of x.
    """
    if num_steps < 1:
        raise ConfigError(f"num_steps ({num_steps}) must be at least 1.")
    batches = [x] if batch_size is None else x.split(batch_size)
    return torch.cat([_local_constant(function, part, num_steps, generator) for part in batches])


def _local_constant(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    num_steps: int,
    generator: torch.Generator | None,
) -> Tensor:
    x = x.detach()
    direction = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    pull_back = vjp(function, x)[1]
    best = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    with torch.no_grad():
        for _ in range(num_steps):
            direction, _ = _normalized(direction)
            with warnings.catch_warnings():
                # Some of torch's own forward derivatives still go through torch.jit.script.
                warnings.filterwarnings(
                    "ignore", message=r".*torch\.jit\.script", category=FutureWarning
                )
                pushed = jvp(function, (x,), (direction,))[1]
            image, size = _normalized(pushed.detach())
            best = torch.maximum(best, size)
            direction = pull_back(image)[0].detach()
    return best


def _normalized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample divided by its Euclidean norm, and the norms."""
    size = torch.linalg.vector_norm(x.flatten(1), dim=1)
    tiny = torch.finfo(x.dtype).tiny
    return x / size.clamp_min(tiny).reshape(-1, *[1] * (x.dim() - 1)), size


@dataclass(frozen=True, kw_only=True)
class Distortion:
    """How a map changes distances over some pairs.

    `smallest` is an upper bound on L1 and `largest` a lower bound on L2 of the map: no pair here
    proves anything about other pairs.
    """

    quantiles: tuple[tuple[float, float], ...]
    smallest: float
    largest: float
    num_pairs: int


def distortion_ratios(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "b ..."], y: Float[Tensor, "b ..."]
) -> Float[Tensor, " b"]:
    """Return |h(x_i) - h(y_i)| / |x_i - y_i| for each pair of distinct inputs; equal pairs are left out."""
    with torch.no_grad():
        inputs = torch.linalg.vector_norm((x - y).flatten(1), dim=1)
        outputs = torch.linalg.vector_norm((function(x) - function(y)).flatten(1), dim=1)
    is_distinct = inputs > 0
    return outputs[is_distinct] / inputs[is_distinct]


def distortion(
    function: Callable[[Tensor], Tensor],
    x: Float[Tensor, "b ..."],
    y: Float[Tensor, "b ..."],
    *,
    quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
) -> Distortion:
    """Return quantiles of the distances that `function` keeps between the pairs (x_i, y_i)."""
    ratios = distortion_ratios(function, x, y).double()
    if ratios.numel() == 0:
        raise ConfigError("x and y must differ in at least one pair: all distances are zero.")
    levels = torch.tensor(list(quantiles), dtype=ratios.dtype, device=ratios.device)
    values = torch.quantile(ratios, levels).tolist()
    return Distortion(
        quantiles=tuple(zip([float(q) for q in quantiles], values, strict=True)),
        smallest=float(ratios.min()),
        largest=float(ratios.max()),
        num_pairs=ratios.numel(),
    )
