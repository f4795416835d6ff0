"""The factor in front of LRSA's squared distances: alpha over a norm of the sample itself."""

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lrformer.attention.masks import check_tokens, without_padding
from lrformer.core import ConfigError

Normalizer = Literal["paper", "floor", "symmetric", "m"]
NORMALIZERS: tuple[str, ...] = get_args(Normalizer)


class CoefficientSettings(NamedTuple):
    """What `lrsa_coefficient` takes besides tokens; it says what each is."""

    alpha: float | Tensor
    normalizer: str
    eps: float
    floor: float
    length_free: bool


def check_normalizer(normalizer: str, *, length_free: bool, floor: float, eps: float) -> None:
    """Raise for settings of the coefficient that cannot work."""
    if normalizer not in NORMALIZERS:
        raise ConfigError(f"normalizer ({normalizer!r}) must be one of {', '.join(NORMALIZERS)}.")
    if normalizer == "m" and length_free:
        raise ConfigError(
            "length_free (True) has no meaning with normalizer 'm', which does not depend on the "
            "number of tokens; leave it False."
        )
    if floor <= 0:
        raise ConfigError(f"floor ({floor}) must be positive.")
    if eps <= 0:
        raise ConfigError(f"eps ({eps}) must be positive: it keeps an all-zero sample finite.")


def lrsa_coefficient(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    x: Float[Tensor, "b n e"],
    *,
    alpha: float | Float[Tensor, " h"],
    normalizer: str = "paper",
    eps: float = 1e-10,
    floor: float = 0.1,
    length_free: bool = False,
    key_padding_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h"]:
    r"""Return c in softmax(-c ||q_i - k_j||^2), per sample and head, in float32 or better (eq. 5).

    With :math:`Z=\|Q\|_F` of the head and :math:`M=\max_i\|x_i\|` of the sample, both over the tokens that
    are not padding, c is alpha over

    ===========  =======================================================================================
    `paper`      :math:`ZM`
    `floor`      :math:`\max(Z, r_0 M)M` with :math:`r_0` = `floor` (theorem 3)
    `symmetric`  :math:`M\sqrt{(\|Q\|_F^2+\|K\|_F^2)/2}` (theorem 4)
    `m`          :math:`M^2` (theorem 5; alpha is its tau)
    ===========  =======================================================================================

    plus `eps`. Z grows with the root of the number of tokens n; `length_free` multiplies alpha by
    :math:`\sqrt n`, so that one alpha is one temperature at every n.
    """
    check_tokens(q, k, x, key_padding_mask)
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, x = (without_padding(part, key_padding_mask) for part in (q, k, x))
    largest = _largest_norm(x, wide)
    if normalizer == "m":
        return alpha / (largest.square() + eps).expand(q.shape[:2])
    norm_q = torch.linalg.vector_norm(q, dim=(-2, -1), dtype=wide)
    if normalizer == "floor":
        norm_q = torch.maximum(norm_q, floor * largest)
    elif normalizer == "symmetric":
        norm_k = torch.linalg.vector_norm(k, dim=(-2, -1), dtype=wide)
        both = torch.stack([norm_q, norm_k], -1)
        norm_q = torch.linalg.vector_norm(both, dim=-1) * 0.5**0.5
    if length_free:
        # A sample that is all padding has no output; the slope of a root at zero would be infinite.
        alpha = alpha * num_valid_tokens(x, key_padding_mask).clamp_min(1).to(wide).sqrt()
    return alpha / (norm_q * largest + eps)


def tied_coefficient(
    squares: Float[Tensor, "b h n"], x: Float[Tensor, "b n e"], settings: CoefficientSettings
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
    r"""Return `lrsa_coefficient` of tied queries and keys from their squared norms, and its slope.

    Nothing flows back through `squares`. The slope is :math:`(\partial c/\partial\|Q\|_F)/\|Q\|_F`, with which
    the gradient g of c reaches q as :math:`g\cdot\text{slope}\cdot q`.
    """
    largest = _largest_norm(x, squares.dtype)
    norm = squares.sum(-1).sqrt()
    acting = norm
    if settings.normalizer == "floor":
        acting = torch.maximum(norm, settings.floor * largest)
    alpha = settings.alpha
    if settings.length_free:
        alpha = alpha * squares.shape[-1] ** 0.5
    denominator = acting * largest + settings.eps
    coefficient = alpha / denominator
    with torch.no_grad():
        # The least number keeps a nearly blank sample finite; the norm itself has no slope at zero.
        slope = (-coefficient * largest / (denominator * norm)).clamp_min(-1e30)
        is_acting = (norm > 0) & (norm >= acting)
        slope = torch.where(is_acting, slope, 0.0)
    return coefficient, slope


def _largest_norm(x: Float[Tensor, "b n e"], dtype: torch.dtype) -> Float[Tensor, "b 1"]:
    """Return the largest norm of a token of each sample.

    In plain code the gradient is that of the largest token alone, of the first if there are several: the
    gradient of a maximum over norms would pass over all of x many times. Compiled, it melts into one.
    """
    if x.shape[1] == 0:
        return x.new_zeros(x.shape[0], 1, dtype=dtype)
    if torch.compiler.is_compiling() or not x.requires_grad:
        return torch.linalg.vector_norm(x, dim=-1, dtype=dtype).amax(-1, keepdim=True)
    index = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=dtype).argmax(-1)
    largest = x.gather(1, index[:, None, None].expand(-1, 1, x.shape[-1]))
    return torch.linalg.vector_norm(largest, dim=-1, dtype=dtype)


def num_valid_tokens(
    x: Float[Tensor, "b n e"], key_padding_mask: Bool[Tensor, "b n"] | None
) -> Tensor:
    """Return how many tokens of each sample are not padding, shape (b, 1)."""
    if key_padding_mask is None:
        return torch.full((x.shape[0], 1), x.shape[1], device=x.device)
    return (~key_padding_mask).sum(-1, keepdim=True)
