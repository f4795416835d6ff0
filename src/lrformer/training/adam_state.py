"""The state that Adam keeps of a parameter, as tensors on its device: what LAMB and the plain part of Muon share."""

import torch
from torch import Tensor


def adam_state(
    optimizer: torch.optim.Optimizer, params: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return counts, means and mean squares of the gradients of `params`; what is missing begins at zero."""
    for parameter in params:
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    states = [optimizer.state[parameter] for parameter in params]
    return (
        [state["step"] for state in states],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
    )


def gradients(params: list[Tensor]) -> list[Tensor]:
    """Return the gradients of parameters that all have one."""
    return [parameter.grad for parameter in params if parameter.grad is not None]
