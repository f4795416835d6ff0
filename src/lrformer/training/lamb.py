"""LAMB: Adam whose step for each weight matrix has the length of the matrix (You et al. 2020)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from lrformer.training.adam_state import adam_state, gradients


class LAMB(torch.optim.Optimizer):
    """AdamW's direction, rescaled for each parameter by `|w| / |update|`.

    Parameters without weight decay are not rescaled, as in timm: a bias that starts at zero has no
    length to go by. Nothing is read back from the device, so that a CUDA graph can hold a step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, ...] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "capturable": True,  # torch then loads a count onto the device of its weight
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step along the gradients; the loss is computed outside, once."""
        assert closure is None
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            if params:
                self._step_group(group, params)

    def _step_group(self, group: dict[str, Any], params: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        grads = gradients(params)
        steps, first, second = adam_state(self, params)
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)

        updates = torch._foreach_div(first, _bias_corrections(beta1, steps))
        scale = torch._foreach_sqrt(torch._foreach_div(second, _bias_corrections(beta2, steps)))
        torch._foreach_add_(scale, group["eps"])
        torch._foreach_div_(updates, scale)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
            torch._foreach_mul_(updates, _trust_ratios(params, updates))
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(params, updates)


def _bias_corrections(beta: float, steps: list[Tensor]) -> list[Tensor]:
    """Return `1 - beta^t` for the count of every parameter."""
    powers = torch._foreach_pow(beta, steps)
    return list((1 - torch.stack(list(powers))).unbind())


def _trust_ratios(params: list[Tensor], updates: list[Tensor] | tuple[Tensor, ...]) -> list[Tensor]:
    """Return `|w| / |update|`, or one where either is zero."""
    weight_norms = torch.stack(list(torch._foreach_norm(params)))
    update_norms = torch.stack(list(torch._foreach_norm(list(updates))))
    is_usable = (weight_norms > 0) & (update_norms > 0)
    return list(torch.where(is_usable, weight_norms / update_norms, 1.0).unbind())
