"""The maps that the theorems speak of: one sample, one head, as slow and plain as their equations.

The attacks differentiate these, and a reader can run them. The layers that a model uses are in
`lrformer.attention`; tests there compare the two.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError

Normalizer = Literal["paper", "floor", "symmetric", "m", "inf"]


def squared_distances(q: Float[Tensor, "n d"], k: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """Return |q_i - k_j|^2 without cancellation."""
    return (q[:, None, :] - k[None, :, :]).square().sum(dim=-1)


def lrsa_scale(
    q: Float[Tensor, "n d"],
    k: Float[Tensor, "n d"],
    x: Float[Tensor, "n e"],
    *,
    normalizer: Normalizer,
    floor: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the denominator of the scores: Z M, or M^2 for the M variant."""
    m = torch.linalg.vector_norm(x, dim=-1).amax()
    z = torch.linalg.vector_norm(q)
    if normalizer == "paper":
        return z * m
    if normalizer == "floor":
        return torch.maximum(z, floor * m) * m
    if normalizer == "symmetric":
        return torch.linalg.vector_norm(torch.cat([q, k])) / math.sqrt(2) * m
    if normalizer == "m":
        return m * m
    if normalizer == "inf":
        return torch.linalg.vector_norm(q, dim=-1).amax() * m
    raise ConfigError(f"normalizer ('{normalizer}') must be paper, floor, symmetric, m or inf.")


def lrsa_weights(
    x: Float[Tensor, "n e"],
    w_q: Float[Tensor, "e d"],
    w_k: Float[Tensor, "e d"],
    *,
    alpha: float,
    normalizer: Normalizer = "paper",
    floor: float = 0.0,
    eps: float = 0.0,
    b_q: Float[Tensor, " d"] | None = None,
    b_k: Float[Tensor, " d"] | None = None,
) -> Float[Tensor, "n n"]:
    """Return P, the rows of attention weights of LRSA."""
    q = x @ w_q if b_q is None else x @ w_q + b_q
    k = x @ w_k if b_k is None else x @ w_k + b_k
    scale = lrsa_scale(q, k, x, normalizer=normalizer, floor=floor) + eps
    return torch.softmax(-alpha * squared_distances(q, k) / scale, dim=-1)


def lrsa(
    x: Float[Tensor, "n e"],
    w_q: Float[Tensor, "e d"],
    w_k: Float[Tensor, "e d"],
    w_v: Float[Tensor, "e o"],
    *,
    alpha: float,
    normalizer: Normalizer = "paper",
    floor: float = 0.0,
    eps: float = 0.0,
    b_q: Float[Tensor, " d"] | None = None,
    b_k: Float[Tensor, " d"] | None = None,
) -> Float[Tensor, "n o"]:
    """Return P X W_V for LRSA's P; `b_q` and `b_k` are biases of q and k."""
    weights = lrsa_weights(
        x, w_q, w_k, alpha=alpha, normalizer=normalizer, floor=floor, eps=eps, b_q=b_q, b_k=b_k
    )
    return weights @ (x @ w_v)


def l2_attention(
    x: Float[Tensor, "n e"], w: Float[Tensor, "e d"], t: Float[Tensor, "d o"]
) -> Float[Tensor, "n o"]:
    """Return P q T with q = x W and P_i = softmax(-|q_i - q_j|^2 / sqrt(d))."""
    q = x @ w
    return torch.softmax(-squared_distances(q, q) / math.sqrt(q.shape[1]), dim=-1) @ (q @ t)


def anchored_l2_attention(
    q: Float[Tensor, "n e"],
    prior: Float[Tensor, "n n"],
    temperature: Float[Tensor, " h"],
) -> Float[Tensor, "n e"]:
    """Return concat_h P_h q_h, where P_h ~ prior * exp(-t_h |q_i - q_j|^2) reads head h's part of q."""
    heads = []
    for part, scale in zip(q.chunk(len(temperature), dim=-1), temperature, strict=True):
        scores = prior.log() - scale * squared_distances(part, part)
        heads.append(torch.softmax(scores, dim=-1) @ part)
    return torch.cat(heads, dim=-1)


def scsa(
    x: Float[Tensor, "n e"],
    w_q: Float[Tensor, "e d"],
    w_k: Float[Tensor, "e d"],
    w_v: Float[Tensor, "e o"],
    *,
    tau: float,
    nu: float,
    eps: float,
) -> Float[Tensor, "n o"]:
    """Return nu softmax(tau q k') v with q, k and v divided by sqrt(|.|^2 + eps)."""

    def unit(y: Tensor) -> Tensor:
        return y / (y.square().sum(dim=-1, keepdim=True) + eps).sqrt()

    return nu * torch.softmax(tau * unit(x @ w_q) @ unit(x @ w_k).T, dim=-1) @ unit(x @ w_v)


def dot_product(
    x: Float[Tensor, "n e"],
    w_q: Float[Tensor, "e d"],
    w_k: Float[Tensor, "e d"],
    w_v: Float[Tensor, "e o"],
) -> Float[Tensor, "n o"]:
    """Return softmax(Q K' / sqrt(d)) V."""
    return torch.softmax(x @ w_q @ (x @ w_k).T / math.sqrt(w_q.shape[1]), dim=-1) @ (x @ w_v)
