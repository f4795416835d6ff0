"""Which tokens a certified head looks at before it has read them: fixed weights, half of them on itself.

The prior anchors the bound of `lrformer.lipschitz.attention.anchored_l2_attention`: the more a token
weighs itself, the smaller the constant. Since the residual already carries the token, nothing is lost
by that. On a picture the heads look in different directions, so position is known to a layer whose
scores only compare contents; this costs no Lipschitz constant.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError

# In order of use: all tokens, the neighborhood, then one step each way.
_STEPS = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))
_NEIGHBORHOOD_WIDTH = 1.0
_STEP_WIDTH = 0.6
# Every head keeps this part of its attention to others for tokens outside its window.
_ELSEWHERE = 0.1


def anchored_prior(
    num_tokens: int,
    num_heads: int,
    *,
    self_weight: float,
    grid_size: tuple[int, int] | None = None,
) -> Float[Tensor, "h n n"]:
    """Return the prior attention of each head, in float64: rows sum to one, `self_weight` on the diagonal.

    It lies on the CPU even where a model is built without memory, because its bound is computed from it.

    Args:
        grid_size: rows and columns of a picture's tokens; without one every head sees all alike.
    """
    if not 0 < self_weight < 1:
        raise ConfigError(f"self_weight ({self_weight}) must be above 0 and below 1.")
    others = torch.stack([_others(num_tokens, head, grid_size) for head in range(num_heads)])
    if num_tokens == 1:
        return torch.ones_like(others)
    others = others / others.sum(dim=-1, keepdim=True)
    return (
        self_weight * torch.eye(num_tokens, dtype=torch.float64, device="cpu")
        + (1 - self_weight) * others
    )


def _others(num_tokens: int, head: int, grid_size: tuple[int, int] | None) -> Float[Tensor, "n n"]:
    """Return unnormalized weights of one head on other tokens."""
    everywhere = 1 - torch.eye(num_tokens, dtype=torch.float64, device="cpu")
    if grid_size is None or head == 0 or num_tokens == 1:
        return everywhere
    rows, columns = (torch.arange(size, dtype=torch.float64, device="cpu") for size in grid_size)
    position = torch.cartesian_prod(rows, columns)
    is_neighborhood = head == 1
    step = (0, 0) if is_neighborhood else _STEPS[(head - 2) % len(_STEPS)]
    width = _NEIGHBORHOOD_WIDTH if is_neighborhood else _STEP_WIDTH
    target = position + torch.tensor(step, dtype=torch.float64, device="cpu")
    distance = (position[None] - target[:, None]).square().sum(dim=-1)
    window = torch.exp(-distance / (2 * width**2)) * everywhere
    # A window that the border cuts keeps its height, and the rest goes everywhere: if the neighbors
    # inside got it instead, their columns would be heavier and the constant larger.
    window = (1 - _ELSEWHERE) * window / window.sum(dim=-1).max()
    return window + (1 - window.sum(dim=-1, keepdim=True)) * everywhere / (num_tokens - 1)
