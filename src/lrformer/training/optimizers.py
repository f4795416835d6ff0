"""Optimizers by name, which parameters they decay, and which Muon takes for matrices."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from lrformer.attention.multihead import MultiheadSelfAttention
from lrformer.heads import LinearHead, VariationalGPHead
from lrformer.methods import DeepEnsemble
from lrformer.methods.base import BackboneMethod
from lrformer.training.config import OptimizerConfig
from lrformer.training.lamb import LAMB
from lrformer.training.muon import Muon

UNDECAYED_NAMES = frozenset({"pos_embed", "cls_token", "log_alpha_factor"})


def parameter_groups(
    model: nn.Module, parameters: Iterable[nn.Parameter], config: OptimizerConfig
) -> list[dict[str, Any]]:
    """Return `parameters` of `model` in two groups: those that are decayed, and those that are not.

    Not decayed are vectors and scalars (norms, biases) unless `decays_vectors`, learned alphas, position embeddings, class
    tokens, what a module names in `no_weight_decay()`, and a variational Gaussian process, whose
    regularization is in its loss. For Muon the matrices among the decayed stand in groups of their own.
    """
    wanted = {id(parameter) for parameter in parameters}
    undecayed = _named_by_modules(model)
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if id(parameter) in wanted:
            is_decayed = (
                (parameter.ndim >= 2 or config.decays_vectors)
                and name.rpartition(".")[2] not in UNDECAYED_NAMES
                and id(parameter) not in undecayed
            )
            groups[is_decayed].append(parameter)
    matrices: dict[int, list[nn.Parameter]] = {}
    if config.name == "muon":
        num_parts = _matrices(model)
        for parameter in groups[True]:
            if id(parameter) in num_parts:
                matrices.setdefault(num_parts[id(parameter)], []).append(parameter)
        groups[True] = [p for p in groups[True] if id(p) not in num_parts]
    decay = config.decay
    return [
        {"params": members, "weight_decay": decay, "is_matrix": True, "num_parts": parts}
        for parts, members in sorted(matrices.items())
    ] + [
        {"params": groups[is_decayed], "weight_decay": decay if is_decayed else 0.0}
        for is_decayed in (True, False)
        if groups[is_decayed]
    ]


def build_optimizer(
    config: OptimizerConfig, groups: list[dict[str, Any]], device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimizer that `config` names; on a GPU its rate is a tensor that a CUDA graph can read."""
    is_cuda = device.type == "cuda"
    lr: float | Tensor = torch.tensor(config.rate, device=device) if is_cuda else config.rate
    if config.name == "sgd":
        return torch.optim.SGD(
            groups, lr=lr, momentum=config.momentum, nesterov=config.nesterov, fused=is_cuda
        )
    beta1, beta2 = config.betas
    if config.name == "lamb":
        return LAMB(groups, lr=lr, betas=(beta1, beta2), eps=config.eps)
    if config.name == "muon":
        return Muon(groups, lr=lr, betas=(beta1, beta2), eps=config.eps)
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


def _matrices(model: nn.Module) -> dict[int, int]:
    """Return the identities of the weights that Muon makes orthogonal, with the number of matrices in each.

    They are the two-dimensional weights and the kernels of convolutions between the layer that reads
    the input and the classifier; not embeddings, nor what has a single row or column. The `qkv` of our
    attention holds two matrices or three.
    """
    outside = {id(parameter) for layer in _outer_layers(model) for parameter in layer.parameters()}
    kernels: set[int] = set()
    num_parts: dict[int, int] = {}
    for module in model.modules():
        own = [id(parameter) for parameter in module.parameters()]
        if isinstance(module, nn.Embedding):
            outside |= set(own)
        elif isinstance(module, _ConvNd) and module.groups == 1 and not module.transposed:
            kernels |= set(own)
        elif isinstance(module, MultiheadSelfAttention):
            parts = 2 if module.tie_qk else 3
            num_parts |= {id(parameter): parts for parameter in module.qkv.parameters()}
    return {
        id(parameter): num_parts.get(id(parameter), 1)
        for parameter in model.parameters()
        if (parameter.ndim == 2 or id(parameter) in kernels)
        and id(parameter) not in outside
        and 1 < parameter.shape[0] < parameter.numel()
    }


def _outer_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the first layer of every network in `model`, which reads the input, and its classifier."""
    for network in model.members if isinstance(model, DeepEnsemble) else [model]:
        layers = (part for part in network.modules() if isinstance(part, nn.Linear | _ConvNd))
        yield from islice(layers, 1)
    for module in model.modules():
        if isinstance(module, LinearHead):
            yield module
        elif isinstance(module, BackboneMethod):
            yield module.head
        classifier = getattr(module, "get_classifier", None)
        if callable(classifier):
            found = classifier()
            # timm's distilled models have two.
            several = found if isinstance(found, tuple | list) else (found,)
            yield from (layer for layer in several if isinstance(layer, nn.Module))


def _names(value: object) -> Iterable[str]:
    return [str(name) for name in value] if isinstance(value, Iterable) else []
