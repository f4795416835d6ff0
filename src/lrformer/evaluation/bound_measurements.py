"""Local constants of a model and of its parts at given inputs: all of them lower bounds."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lrformer.attention import LRSA, MultiheadSelfAttention, use_backend
from lrformer.core import ConfigError, NotFiniteError
from lrformer.core.modes import evaluating
from lrformer.evaluation.bound_modules import unwrap_attention
from lrformer.evaluation.bound_structure import HEADLESS_CLASSES
from lrformer.evaluation.bound_types import is_exactly
from lrformer.lipschitz import (
    Distortion,
    attention_entropy,
    distortion,
    local_constant,
    singular_ratio,
)

# Called before each measurement: what is measured next, how many are done, and how many there are.
Progress = Callable[[str, int, int], None]


@dataclass(kw_only=True)
class Measurements:
    """What was seen, by the names of modules; `outputs` are the logits at the inputs."""

    outputs: Tensor
    logits: Tensor
    places: dict[str, float] = field(default_factory=dict)
    modules: dict[str, float] = field(default_factory=dict)
    input_norms: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    entropies: dict[str, float] = field(default_factory=dict)
    found: dict[str, nn.Module] = field(default_factory=dict)


def measure(
    model: nn.Module,
    x: Tensor,
    *,
    places: Sequence[str],
    modules: Sequence[str],
    num_steps: int,
    batch_size: int,
    generator: torch.Generator | None,
    progress: Progress | None = None,
) -> Measurements:
    """Return local constants of the logits, of the map up to each place, and of each module.

    A module is measured at the tokens that really enter it; a name that is no submodule, or a module
    that takes more than one tensor, is left out.
    """
    total = 1 + len(places) + len(modules)
    done = count()

    def tell(name: str) -> None:
        if progress is not None:
            progress(name, next(done), total)

    if x.shape[0] == 0:
        raise ConfigError("x must hold at least one input to measure at.")
    named = dict(model.named_modules())
    with differentiable(model):
        outputs = torch.cat([_logits(model, part) for part in x.split(batch_size)]).detach()
        if (first := first_not_finite(outputs)) is not None:
            raise NotFiniteError(
                f"what the model gives for input {first} of x is NaN or infinite, so that nothing can be measured there; "
                "leave that input out, or look for what overflows in the model."
            )
        tell("logits")
        settings = {"num_steps": num_steps, "batch_size": batch_size, "generator": generator}
        logits = local_constant(lambda y: _logits(model, y), x, **settings)
        seen = Measurements(outputs=outputs, logits=logits)
        known = {name: _find(named, name) for name in (*places, *modules)}
        seen.found = {name: module for name, module in known.items() if module is not None}
        for name in places:
            tell(f"input to {name}")
            if name in seen.found:
                prefix = _Prefix(model, seen.found[name])
                seen.places[name] = float(local_constant(prefix, x, **settings).max())
        wanted = {name: seen.found[name] for name in modules if name in seen.found}
        for name, call in _calls(model, x[:batch_size], wanted).items():
            tell(name)
            tokens = call.tokens
            seen.input_norms[name] = float(tokens.flatten(1).norm(dim=1).median())
            seen.modules[name] = float(local_constant(call, tokens, **settings).max())
            attention = unwrap_attention(seen.found[name])
            if isinstance(attention, MultiheadSelfAttention):
                _look_at(attention, tokens, name, seen)
    return seen


def first_not_finite(values: Tensor) -> int | None:
    """Return the number of the first row that holds NaN or infinity."""
    rows = (~values.isfinite()).flatten(1).any(1).nonzero()
    return int(rows[0]) if len(rows) else None


@torch.no_grad()
def exact_outputs(model: nn.Module, x: Tensor, outputs: Tensor, *, batch_size: int) -> Tensor:
    """Return `outputs` in float64; of a model with less those of its copy in float64.

    Its own are rounded, and the constants are those of the map without rounding.
    """
    if outputs.dtype == torch.float64:
        return outputs
    exact = copy.deepcopy(model).double()
    with differentiable(exact):
        return torch.cat([_logits(exact, part.double()) for part in x.split(batch_size)])


def pair_distortions(
    model: nn.Module, pairs: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, Distortion]:
    """Return how the features of `model` change the distances between pairs of inputs, by name.

    Features are what `forward_features` gives where there is one, and the logits otherwise.
    """
    backbone = getattr(model, "backbone", model)
    features = getattr(backbone, "forward_features", None) or (lambda y: _logits(model, y))
    with differentiable(model):
        return {
            name: distortion(lambda y: features(y).flatten(1), first, second)
            for name, (first, second) in pairs.items()
        }


def _find(named: dict[str, nn.Module], name: str) -> nn.Module | None:
    """Return the module of this name, also under the prefix of a wrapper or under another package's name."""
    for candidate in (name, f"backbone.{name}"):
        if candidate in named:
            return named[candidate]
    renamed = {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn": "attention",
    }
    stem, _, last = name.rpartition(".")
    return named.get(f"{stem}.{renamed[last]}") if last in renamed else None


@torch.no_grad()
def _look_at(
    attention: MultiheadSelfAttention, tokens: Tensor, name: str, seen: Measurements
) -> None:
    seen.entropies[name] = float(attention_entropy(attention.attention_map(tokens)).mean())
    if isinstance(attention, LRSA):
        query = attention.project(tokens)[0]
        seen.ratios[name] = float(singular_ratio(query, tokens).min())


class _Arrived(Exception):  # noqa: N818
    """What leaves a module has been seen; the rest of the model need not run."""


class _Prefix:
    """The map from the input to what leaves one module of a model."""

    def __init__(self, model: nn.Module, module: nn.Module) -> None:
        self.model, self.module = model, module

    def __call__(self, x: Tensor) -> Tensor:
        caught: list[Any] = []

        def catch(_: nn.Module, __: Any, output: Any) -> None:
            caught.append(output)
            raise _Arrived

        handle = self.module.register_forward_hook(catch)
        try:
            self.model(x)
        except _Arrived:
            pass
        finally:
            handle.remove()
        return _first_tensor(caught[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """One call of a module, as a map of the tokens in it; numbers beside them stay as they were."""

    module: nn.Module
    tokens: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        args = tuple(x if part is self.tokens else part for part in self.args)
        kwargs = {key: x if part is self.tokens else part for key, part in self.kwargs.items()}
        return _first_tensor(self.module(*args, **kwargs))


@torch.no_grad()
def _calls(model: nn.Module, x: Tensor, modules: dict[str, nn.Module]) -> dict[str, _Call]:
    """Return how each module is called at x, for modules that take one tensor that is no number."""
    caught: dict[str, _Call] = {}

    def watch(name: str, module: nn.Module) -> Any:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.ndim > 0]
            if len(tensors) == 1:
                caught[name] = _Call(module=module, tokens=tensors[0], args=args, kwargs=kwargs)

        return module.register_forward_pre_hook(before, with_kwargs=True)

    handles = [watch(name, module) for name, module in modules.items()]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return caught


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Evaluate with attention that has forward derivatives: the reference backend, no fused kernels."""
    with evaluating(model), use_backend(model, "reference"), sdpa_kernel(SDPBackend.MATH):
        yield


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    """Return the logits, or in their place the class token of a model that has no head."""
    output = model(x)
    if is_exactly(model, *HEADLESS_CLASSES):
        return _first_tensor(output)[:, 0]
    return (
        output if isinstance(output, Tensor) else _first_tensor(getattr(output, "logits", output))
    )


def _first_tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]
