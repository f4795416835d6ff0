"""How far outputs and gradients are from float64, on one sample of the batch that is timed."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lrformer.attention import l2_attention, lrsa_attention
from lrformer.bench.attention_contenders import Contender, Inputs, alpha_of


def exact_results(attention: str, inputs: Inputs) -> dict[str, Tensor]:
    """Return output and gradients of the first sample in float64, by the definition, head by head."""
    leaves = {
        name: leaf[:1].detach().double().requires_grad_()
        for name, leaf in inputs.leaves(attention).items()
    }
    outputs = []
    grads = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    for head in range(inputs.q.shape[1]):
        part = {n: t if n == "x" else t[:, head : head + 1] for n, t in leaves.items()}
        out = _exact(attention, part)
        grad = inputs.grad[:1, head : head + 1].double()
        for name, found in zip(
            leaves, torch.autograd.grad(out, tuple(leaves.values()), grad), strict=True
        ):
            grads[name] += found
        outputs.append(out.detach())
    return {"out": torch.cat(outputs, 1), **grads}


def _exact(attention: str, part: dict[str, Tensor]) -> Tensor:
    q, v = part["q"], part["v"]
    if attention == "lrsa":
        alpha = alpha_of(q.shape[2])
        return lrsa_attention(q, q, v, part["x"], alpha=alpha, backend="reference")
    if attention == "l2":
        return l2_attention(q, q, v, backend="reference")
    scores = q @ part["k"].mT * q.shape[-1] ** -0.5
    return F.softmax(scores, -1) @ v


def relative_errors(
    contender: Contender, inputs: Inputs, exact: dict[str, Tensor]
) -> dict[str, float]:
    """Return ||found - exact||_F / ||exact||_F of the output and of each gradient, first sample."""
    leaves = inputs.leaves(contender.attention)
    out = contender.forward(inputs)
    grads = torch.autograd.grad(out, tuple(leaves.values()), inputs.grad)
    found = {"out": out.detach(), **dict(zip(leaves, grads, strict=True))}
    return {
        name: ((found[name][:1].double() - exact[name]).norm() / exact[name].norm()).item()
        for name in exact
    }
