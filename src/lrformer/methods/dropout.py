"""Dropout that stays on in a prediction: one sampled sub-network for each copy of the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from lrformer.core import ConfigError


def active_dropouts(model: nn.Module) -> list[_DropoutNd]:
    """Return the dropout layers of `model` that would drop something.

    Raises:
        ConfigError: when there is none, because every sample would then be the same.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _DropoutNd) and layer.p > 0]
    for layer in layers:
        if not isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            raise ConfigError(
                f"{type(layer).__name__} is not supported; use nn.Dropout or nn.Dropout1d to 3d."
            )
    if not layers:
        raise ConfigError(
            f"{type(model).__name__} has no dropout layer with a rate above 0, so every sample "
            "would be the same; build the backbone with a dropout rate, such as "
            "proj_drop_rate=0.1 (transformers) or drop_rate=0.1 (WideResNet) (--model-option), or give "
            "the method head_drop_rate=0.1 (--method-option)."
        )
    return layers


@contextmanager
def sampled_dropout(
    model: nn.Module, num_samples: int, generator: torch.Generator | None
) -> Iterator[None]:
    """Drop, inside the block, in a `model` that is in evaluation mode and sees `num_samples` copies.

    The batch is `num_samples` copies one after the other. Each copy has one mask for all its inputs
    (a sampled sub-network), drawn from `generator`: a seeded prediction does not depend on which
    inputs share the batch. Only dropout layers act; batch norm and stochastic depth do not.

    Raises:
        ConfigError: when the forward pass used none of the dropout layers.
    """
    calls = 0

    def drop(layer: _DropoutNd, _: tuple[Tensor, ...], output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        per_copy = output.unflatten(0, (num_samples, -1))
        mask = _mask(layer, per_copy, generator)
        return (per_copy * mask).flatten(0, 1)

    hook: Callable[..., Tensor] = drop
    handles = [layer.register_forward_hook(hook) for layer in active_dropouts(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if calls == 0:
        raise ConfigError(
            f"the forward pass of {type(model).__name__} used none of its dropout layers; "
            "dropout inside a fused attention is not sampled, use the rate of a projection."
        )


def _mask(layer: _DropoutNd, per_copy: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return zeros and `1/(1-p)` for each copy, shared by its inputs; whole channels for DropoutNd."""
    num_samples, _, *rest = per_copy.shape
    shape = [num_samples, 1, *rest]
    if not isinstance(layer, nn.Dropout):
        shape[3:] = [1] * (len(shape) - 3)
    device = generator.device if generator is not None else per_copy.device
    kept = torch.rand(shape, generator=generator, device=device) >= layer.p
    return kept.to(device=per_copy.device, dtype=per_copy.dtype).div_(1 - layer.p)


def repeat_batch(x: Tensor, num_samples: int) -> Tensor:
    """Return `num_samples` copies of the batch, one after the other."""
    return x.repeat(num_samples, *([1] * (x.ndim - 1)))


def chunks(num_samples: int, size: int | None) -> Iterator[int]:
    """Yield how many samples each forward pass draws, at most `size`."""
    size = num_samples if size is None else size
    for start in range(0, num_samples, size):
        yield min(size, num_samples - start)
