"""Muon: steps along weight matrices made orthogonal (Jordan et al. 2024, scaled as in Liu et al. 2025)."""

import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adamw import adamw

from lrformer.training.adam_state import adam_state, gradients

# The quintic `a x + b x^3 + c x^5`: steep at zero, it brings singular values near one in five rounds.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
SMALLEST_NORM = 1e-7
# The usual root mean square of AdamW's step at rate one, which is what lets both rules share a rate.
ADAMW_RMS = 0.2


class Muon(torch.optim.Optimizer):
    """Nesterov momentum made orthogonal for groups with `is_matrix`, AdamW for all others, at one rate.

    A matrix of `rows` x `columns` moves by `lr * 0.2 * sqrt(max(rows, columns))` times the orthogonal
    matrix, which has the root mean square of AdamW's step. Kernels of convolutions are flattened to
    (outputs, inputs * height * width). A group with `num_parts` holds weights of that many matrices
    stacked by rows, such as q, k and v: each part is made orthogonal by itself.

    Not `torch.optim.Muon`, which reads the rate back from the device, takes matrices one by one and
    knows no convolutions. Here nothing is read back, so that a CUDA graph can hold a step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "is_matrix": False,
            "num_parts": 1,
            "capturable": True,  # torch then loads a count onto the device of its weight
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step along the gradients; the loss is computed outside, once."""
        assert closure is None
        of_matrices: list[tuple[dict[str, Any], list[Tensor]]] = []
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            if params and group["is_matrix"]:
                of_matrices.append((group, params))
            elif params:
                self._step_adamw(group, params)
        # Matrices of all groups at once: q, k and v have the shape of other weights.
        updates = iter(
            matrix_updates(
                [m for group, params in of_matrices for m in self._momenta(group, params)]
            )
        )
        for group, params in of_matrices:
            _move(group, params, list(islice(updates, len(params))))

    def _momenta(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """Return the Nesterov momentum of every parameter as a stack of its `num_parts` matrices."""
        for parameter in params:
            if not self.state[parameter]:
                self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        grads = gradients(params)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in params]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        momenta = torch._foreach_lerp(grads, buffers, group["momentum"])
        parts = group["num_parts"]
        return [m.reshape(parts, m.shape[0] // parts, -1) for m in momenta]

    def _step_adamw(self, group: dict[str, Any], params: list[Tensor]) -> None:
        steps, first, second = adam_state(self, params)
        beta1, beta2 = group["betas"]
        is_cuda = params[0].is_cuda
        adamw(
            params,
            gradients(params),
            first,
            second,
            [],
            steps,
            foreach=False,
            fused=is_cuda,
            capturable=is_cuda,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def matrix_updates(stacks: list[Tensor]) -> list[Tensor]:
    """Return every matrix of every stack (k, rows, columns) made orthogonal, with AdamW's root mean square.

    Matrices of one shape, or of its transpose, go through one batched product.
    """
    buckets: dict[tuple[int, int], list[int]] = {}
    for index, stack in enumerate(stacks):
        rows, columns = stack.shape[1:]
        buckets.setdefault((min(rows, columns), max(rows, columns)), []).append(index)
    updates = list(stacks)
    for (short, long), indices in buckets.items():
        is_tall = [stacks[index].shape[1] > short for index in indices]
        wide = [
            stacks[index].mT if flip else stacks[index]
            for index, flip in zip(indices, is_tall, strict=True)
        ]
        batch = orthogonalize(torch.cat(wide)).mul_(ADAMW_RMS * math.sqrt(long))
        parts = batch.split([len(stack) for stack in wide])
        for index, flip, part in zip(indices, is_tall, parts, strict=True):
            # Equal strides keep the step that follows in one launch.
            updates[index] = part.mT.contiguous() if flip else part
    return updates


def orthogonalize(matrices: Float[Tensor, "k rows columns"]) -> Float[Tensor, "k rows columns"]:
    """Return each matrix with its singular values near one (about 0.7 to 1.2), by Newton-Schulz iterations.

    Singular values far below the length of the matrix stay smaller. The products are bfloat16 on a GPU;
    on a CPU, where those are slow, they have the precision of the input. Rows should not outnumber
    columns: the Gram matrix is that of the rows.
    """
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x = matrices / norms.clamp_min(SMALLEST_NORM)
    if x.is_cuda:
        x = x.bfloat16()
    a, b, c = COEFFICIENTS
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.to(matrices.dtype)


def _move(group: dict[str, Any], params: list[Tensor], stacks: list[Tensor]) -> None:
    """Decay the parameters and subtract their updates, which the rate has yet to scale."""
    updates = [
        stack.reshape(parameter.shape) for stack, parameter in zip(stacks, params, strict=True)
    ]
    lr = group["lr"]
    if group["weight_decay"]:
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
    torch._foreach_mul_(updates, lr)
    torch._foreach_sub_(params, updates)
