"""The two residual branches of a certified block, each with a bound on its own Lipschitz constant.

A branch is linear in two matrices around something whose constant is known, so its bound is
`bracket * sigma(weight_in) * sigma(weight_out)` in the Frobenius norm; the caller scales the branch
by its budget over that bound.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lrformer.core import ConfigError
from lrformer.lipschitz.attention import anchored_center, centered_anchored_l2_attention
from lrformer.lipschitz.layers import ACTIVATIONS

# GELU's slope lies within this of one half, because GELU'(x) + GELU'(-x) = 1.
_HALF_RANGE = ACTIVATIONS["gelu"] - 0.5
_ROUNDED = 1 + 1e-6


class CertifiedBranch(nn.Module):
    """A residual branch g with |g(x) - g(y)|_F <= scale * bracket * sigma_in * sigma_out |x - y|_F."""

    bracket: float

    def __init__(self, embed_dim: int, hidden_dim: int, *, budget: float) -> None:
        super().__init__()
        if not 0 < budget < 1:
            raise ConfigError(f"budget ({budget}) must be above 0 and below 1 to keep distances.")
        self.budget = budget
        self.weight_in = nn.Parameter(torch.empty(hidden_dim, embed_dim))
        self.weight_out = nn.Parameter(torch.empty(embed_dim, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(embed_dim))
        nn.init.orthogonal_(self.weight_in)
        nn.init.orthogonal_(self.weight_out)

    def scale(self, sigma_in: Tensor, sigma_out: Tensor) -> Tensor:
        """Return the factor that keeps the branch within its budget: min(1, budget / bound)."""
        # Clamped before the quotient: the gradient stays finite where a matrix is zero.
        return self.budget / (self.bracket * sigma_in * sigma_out).clamp(min=self.budget)

    def forward(
        self, x: Float[Tensor, "b n e"], scale: Float[Tensor, ""]
    ) -> Float[Tensor, "b n e"]:
        """Return the branch at x, scaled; the bias is outside the scale, as it moves all points alike."""
        inner = self.inner(F.linear(x, self.weight_in))
        return F.linear(inner, scale.to(x.dtype) * self.weight_out, self.bias)

    def inner(self, u: Float[Tensor, "b n f"]) -> Float[Tensor, "b n f"]:
        """Return the map between the two matrices, of constant `bracket`."""
        raise NotImplementedError


class AnchoredAttention(CertifiedBranch):
    """P u - m u per head, with P_ij ~ prior_ij exp(-t |u_i - u_j|^2) and u = W_in x.

    Queries, keys and values are one u: values must be a function of the queries for a constant to
    exist, and any matrix between them is absorbed by W_out. The temperature t of a head is learned
    and does not enter the bound. m is the middle of the possible self weights.
    """

    log_prior: Float[Tensor, "h n n"]

    def __init__(self, embed_dim: int, prior: Float[Tensor, "h n n"], *, budget: float) -> None:
        super().__init__(embed_dim, embed_dim, budget=budget)
        num_heads = prior.shape[0]
        if embed_dim % num_heads != 0:
            raise ConfigError(f"num_heads ({num_heads}) must divide embed_dim ({embed_dim}).")
        self.num_heads = num_heads
        self._stored_log_prior = prior.log().float()
        self.register_buffer("log_prior", self._stored_log_prior.clone(), persistent=False)
        # The bound is that of the prior as it is stored: rounding has moved it in the seventh digit.
        stored = self._stored_log_prior.double().exp()
        is_alone = prior.shape[1] == 1
        self.center = center = 0.0 if is_alone else max(map(anchored_center, stored))
        brackets = (centered_anchored_l2_attention(head, center=center) for head in stored)
        self.bracket = 1.0 if is_alone else _ROUNDED * max(brackets)
        # At the start a typical pair of tokens of unit variance is two units of energy apart.
        start = math.log(num_heads / embed_dim)
        self.log_temperature = nn.Parameter(torch.full((num_heads,), start))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "AnchoredAttention":
        """Move and cast the parameters; the prior moves but is never rounded, for the bound is its own."""
        super()._apply(fn, recurse)
        self.log_prior = self._stored_log_prior.to(self.log_prior.device)
        return self

    def weights(self, u: Float[Tensor, "b n e"]) -> Float[Tensor, "b h n n"]:
        """Return P, in float32 or better."""
        wide = torch.promote_types(u.dtype, torch.float32)
        heads = u.to(wide).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        # Differences do not see a common shift; without it the expanded square cancels less.
        heads = heads - heads.mean(dim=-2, keepdim=True).detach()
        square = heads.square().sum(dim=-1)
        energy = (square[..., :, None] + square[..., None, :] - 2 * heads @ heads.mT).clamp_min(0)
        temperature = self.log_temperature.to(wide).exp()[:, None, None]
        return torch.softmax(self.log_prior.to(wide) - temperature * energy, dim=-1)

    def inner(self, u: Float[Tensor, "b n e"]) -> Float[Tensor, "b n e"]:
        """Return P u - m u, head by head."""
        with torch.autocast(u.device.type, enabled=False):
            weights = self.weights(u)
        heads = u.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        mixed = weights.to(u.dtype) @ heads - self.center * heads
        return mixed.transpose(1, 2).flatten(-2)


class CenteredMlp(CertifiedBranch):
    """W_out a(W_in x + b), where a(z) = (GELU(z) - z / 2) / 0.6289 has slopes between -1 and 1.

    GELU's own slopes lie between -0.129 and 1.129. Half of z is linear; without it the same budget
    bends 1.1289 / 0.6289 = 1.8 times as much.
    """

    bracket = 1.0

    def __init__(self, embed_dim: int, hidden_dim: int, *, budget: float) -> None:
        super().__init__(embed_dim, hidden_dim, budget=budget)
        self.bias_in = nn.Parameter(torch.zeros(hidden_dim))

    def inner(self, u: Float[Tensor, "b n f"]) -> Float[Tensor, "b n f"]:
        """Return the centered activation."""
        z = u + self.bias_in
        return (F.gelu(z) - 0.5 * z) / _HALF_RANGE
