"""Optimizers by name, and which parameters they decay."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lrformer.heads import VariationalGPHead
from lrformer.training.config import OptimizerConfig
from lrformer.training.lamb import LAMB

UNDECAYED_NAMES = frozenset({"pos_embed", "cls_token", "log_alpha_factor"})


def parameter_groups(
    model: nn.Module, parameters: Iterable[nn.Parameter], weight_decay: float
) -> list[dict[str, Any]]:
    """Return `parameters` of `model` in two groups: those that are decayed, and those that are not.

    Not decayed are vectors and scalars (norms, biases, learned alphas), position embeddings, class
    tokens, what a module names in `no_weight_decay()`, and a variational Gaussian process, whose
    regularization is in its loss.
    """
    wanted = {id(parameter) for parameter in parameters}
    undecayed = _named_by_modules(model)
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if id(parameter) in wanted:
            is_decayed = (
                parameter.ndim >= 2
                and name.rpartition(".")[2] not in UNDECAYED_NAMES
                and id(parameter) not in undecayed
            )
            groups[is_decayed].append(parameter)
    return [
        {"params": groups[is_decayed], "weight_decay": weight_decay if is_decayed else 0.0}
        for is_decayed in (True, False)
        if groups[is_decayed]
    ]


def build_optimizer(
    config: OptimizerConfig, groups: list[dict[str, Any]], device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimizer that `config` names; on a GPU its rate is a tensor that a CUDA graph can read."""
    is_cuda = device.type == "cuda"
    lr: float | Tensor = torch.tensor(config.lr, device=device) if is_cuda else config.lr
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=config.momentum, fused=is_cuda)
    beta1, beta2 = config.betas
    if config.name == "lamb":
        return LAMB(groups, lr=lr, betas=(beta1, beta2), eps=config.eps)
    return torch.optim.AdamW(
        groups, lr=lr, betas=(beta1, beta2), eps=config.eps, fused=is_cuda, capturable=is_cuda
    )


def _named_by_modules(model: nn.Module) -> set[int]:
    """Return the identities of the parameters that a module of `model` does not want decayed."""
    found: set[int] = set()
    for module in model.modules():
        if isinstance(module, VariationalGPHead):
            found |= {id(parameter) for parameter in module.parameters()}
        named = getattr(module, "no_weight_decay", None)
        if callable(named):
            own = dict(module.named_parameters())
            found |= {id(own[name]) for name in _names(named()) if name in own}
    return found


def _names(value: object) -> Iterable[str]:
    return [str(name) for name in value] if isinstance(value, Iterable) else []
