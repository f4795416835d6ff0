"""The gradients of the operators, for plain code and compile, and again for `torch.func`.

Reverse mode once. A gradient of the gradient raises, and so does forward mode: an operator that registers
its gradient would drop tangents without a word. Functions that torch.func can transform know better, but
cost 50 microseconds of Python a call, so they are taken only where something is transformed.
"""

from typing import Any

import torch
from torch import Tensor

from lrformer.attention.backends.triton import operators
from lrformer.core.transforms import is_transformed


def tied_squared_distance(*inputs: Any) -> Tensor:
    """Return softmax(-c ||q_i - q_j||^2) v of (q, v, c, squares, slope, has_backward)."""
    if is_transformed():
        return TiedSquaredDistance.apply(*inputs)[0]
    return operators.tied_squared_distance(*inputs)[0]


def squared_distance(*inputs: Any) -> Tensor:
    """Return softmax(-c ||q_i - k_j||^2) v of (q, k, v, c, padding, has_backward)."""
    if is_transformed():
        return SquaredDistance.apply(*inputs)[0]
    return operators.squared_distance(*inputs)[0]


class TiedSquaredDistance(torch.autograd.Function):
    """softmax(-c ||q_i - q_j||^2) v of (q, v, c, squares, slope, has_backward)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        """Return the averaged values and what the backward pass reads."""
        return operators.tied_squared_distance(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the backward pass reads."""
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:5], *output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs."""
        return *_TiedGradient.apply(grads[0], *ctx.saved_tensors), None, None, None


class SquaredDistance(torch.autograd.Function):
    """softmax(-c ||q_i - k_j||^2) v of (q, k, v, c, padding, has_backward)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        """Return the averaged values and what the backward pass reads."""
        return operators.squared_distance(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the backward pass reads."""
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:4], *output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs."""
        return *_Gradient.apply(grads[0], *ctx.saved_tensors), None, None


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again; torch.func.grad asks for more than it may use."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        _no_second_derivative(ctx, *grads)


class _TiedGradient(_Once):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return operators.tied_squared_distance_backward(*inputs)


class _Gradient(_Once):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return operators.squared_distance_backward(*inputs)


def _no_second_derivative(ctx: Any, *_: Any) -> None:
    raise NotImplementedError(
        "the Triton kernels have no second derivative; compute under "
        "lrformer.attention.use_backend(model, 'reference')."
    )


def _keep_tied(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)


def _tied_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    gradients = operators.tied_squared_distance_backward(grad, *ctx.saved_tensors)
    return *gradients, None, None, None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)


def _gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return *operators.squared_distance_backward(grad, *ctx.saved_tensors), None, None


operators.tied_squared_distance.register_autograd(_tied_gradient, setup_context=_keep_tied)
operators.squared_distance.register_autograd(_gradient, setup_context=_keep)
operators.tied_squared_distance_backward.register_autograd(_no_second_derivative)
operators.squared_distance_backward.register_autograd(_no_second_derivative)
