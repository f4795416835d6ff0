"""A search for inputs and weights that break a bound: gradient ascent on log |J| - log bound."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.func import jacrev

from lrformer.core import ConfigError
from lrformer.lipschitz.bound import Norm, require_token_norm
from lrformer.lipschitz.norms import frobenius_operator_norm, max_token_operator_norm
from lrformer.lipschitz.scalar import Scalar


class Target(Protocol):
    """A map and the bound on it, both built from the same free tensors."""

    def __call__(self, free: Sequence[Tensor]) -> tuple[Callable[[Tensor], Tensor], Tensor, Scalar]:
        """Return (map on one sample of shape (n, e), the sample, the bound) at these tensors."""
        ...


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The outcome of one search; a ratio above one is a counterexample.

    Attributes:
        ratio: the largest |J| / bound that was met.
        start: the ratio at the random start.
        step: when the largest was met.
        free: the tensors that reach it.
    """

    ratio: float
    start: float
    step: int
    free: tuple[Tensor, ...]


def jacobian_norm(
    function: Callable[[Tensor], Tensor], x: Tensor, *, norm: Norm, generator: torch.Generator
) -> Tensor:
    """Return |J(x)| in the operator norm of `norm`: exact for F, a tight lower bound for max."""
    require_token_norm(norm)
    jacobian = jacrev(function)(x)
    assert isinstance(jacobian, Tensor)
    if norm == "F":
        return frobenius_operator_norm(jacobian)
    return max_token_operator_norm(jacobian, generator=generator)


def attack(
    target: Target,
    free: Sequence[Tensor],
    *,
    norm: Norm,
    generator: torch.Generator,
    num_steps: int = 100,
    learning_rate: float = 0.05,
) -> Attack:
    """Return the worst ratio |J| / bound met on the way up from `free`, in float64.

    The tensors are updated by Adam; none is changed in place. A non-finite gradient (a tie, or an
    input on a singular set) ends the search, with what it has met so far.
    """
    if any(tensor.dtype != torch.float64 for tensor in free):
        raise ConfigError("free tensors must be float64: a ratio near 1 is decided by late digits.")
    variables = [tensor.detach().clone().requires_grad_() for tensor in free]
    optimizer = torch.optim.Adam(variables, lr=learning_rate)
    start, best, best_step = float("nan"), -float("inf"), 0
    best_free = tuple(v.detach().clone() for v in variables)
    for step in range(num_steps):
        function, x, bound = target(variables)
        size = jacobian_norm(function, x, norm=norm, generator=generator)
        objective = size.log() - torch.as_tensor(bound, dtype=size.dtype).log()
        ratio = float(objective.detach().exp())
        if step == 0:
            start = ratio
        if ratio > best:
            best, best_step = ratio, step
            best_free = tuple(v.detach().clone() for v in variables)
        gradients = torch.autograd.grad(objective, variables, allow_unused=True)
        if not all(g is None or bool(torch.isfinite(g).all()) for g in gradients):
            break
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.grad = None if gradient is None else -gradient
        optimizer.step()
    return Attack(ratio=best, start=start, step=best_step, free=best_free)
