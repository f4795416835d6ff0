"""What a Lipschitz statement consists of: a value, the norm it holds in, its standing and a reason."""

import math
from dataclasses import dataclass
from typing import Literal

from lrformer.core import ConfigError

Norm = Literal["F", "max", "inf"]
Kind = Literal["sound", "printed", "measured"]

NORMS: dict[str, str] = {
    "F": "Frobenius norm over all tokens",
    "max": "largest Euclidean norm of a token",
    "inf": "largest entry (used by the paper for LayerNorm)",
}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A constant in one norm.

    Attributes:
        value: the constant; infinity where none is known to exist.
        norm: the norm on both sides; constants of different norms must not be multiplied.
        kind: `sound` (proved upper bound), `printed` (the paper's formula, not valid) or
            `measured` (seen at some inputs, hence a lower bound).
        reason: why the value is what it is; never empty for an infinite value.
    """

    value: float
    norm: Norm
    kind: Kind = "sound"
    reason: str = ""

    def __post_init__(self) -> None:
        if math.isnan(self.value) or self.value < 0:
            raise ConfigError(f"value ({self.value}) of a bound must be a number >= 0 or inf.")
        if math.isinf(self.value) and not self.reason:
            raise ConfigError(
                "value (inf) of a bound must come with a reason: say why none exists."
            )

    @property
    def is_finite(self) -> bool:
        """Return whether there is a constant at all."""
        return math.isfinite(self.value)

    def __str__(self) -> str:
        tail = f": {self.reason}" if self.reason else ""
        return f"{self.value:.4g} ({self.norm}, {self.kind}){tail}"


def require_token_norm(norm: str) -> None:
    """Raise unless `norm` is one of the two norms that the attention theorems are stated in."""
    if norm not in {"F", "max"}:
        raise ConfigError(f"norm ('{norm}') must be 'F' or 'max', the norms of token matrices.")


def require_positive(**values: float) -> None:
    """Raise unless each named value is positive."""
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} ({value}) must be positive.")


def require_tokens(n: int) -> None:
    """Raise unless `n` counts at least one token."""
    if n < 1:
        raise ConfigError(f"n ({n}) must be at least 1: it is the number of tokens of a sample.")
