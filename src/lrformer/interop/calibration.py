"""One batch through a model: what enters and leaves every attention, every block and the model itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.core.modes import evaluating


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """What was seen during one forward pass, by the names of the modules."""

    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    result: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def record(model: nn.Module, names: Sequence[str], batch: Any) -> Recording:
    """Return the arguments and outputs of the named modules of `model` on `batch`, in evaluation mode.

    `batch` is a tensor, a sequence of positional arguments, or a mapping of keyword arguments.
    """
    recording = Recording()

    def watch(name: str) -> Any:
        def after_forward(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            recording.calls[name] = (args, kwargs)
            recording.outputs[name] = main_tensor(output)

        return model.get_submodule(name).register_forward_hook(after_forward, with_kwargs=True)

    handles = [watch(name) for name in dict.fromkeys(names)]
    try:
        with evaluating(model):
            recording.result.append(main_tensor(_call(model, batch)))
    except ConfigError:
        raise
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the model cannot take the calibration batch ({type(error).__name__}: {error}); give inputs as the model "
            "is called with: a tensor, a tuple of arguments or a dict of keyword arguments."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return recording


def _call(model: nn.Module, batch: Any) -> Any:
    """Return what `model` makes of a batch given in one of its three forms."""
    if isinstance(batch, Tensor):
        return model(batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return model(*batch)
    raise ConfigError(
        f"calibration is a {type(batch).__name__}; it must be a batch of inputs: a tensor, a tuple of "
        f"arguments or a dict of keyword arguments."
    )


def main_tensor(output: Any) -> Tensor:
    """Return the tensor that an output is about: itself, its logits, hidden states, or its first part."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        part = getattr(output, name, None)
        if isinstance(part, Tensor):
            return part
    return main_tensor(output[0])


def relative_movement(
    new: Float[Tensor, "..."],
    old: Float[Tensor, "..."],
    padding: Bool[Tensor, "b n"] | None,
) -> float:
    """Return the norm of the difference over the norm of `old`, both without padded tokens."""
    new, old = new.double(), old.double()
    if padding is not None and old.ndim == 3:
        new, old = new[~padding], old[~padding]
    distance = torch.linalg.vector_norm(new - old)
    return float(distance / torch.linalg.vector_norm(old).clamp_min(1e-30))
