"""Shapes of attention to measure, as `batch x heads x tokens` and a head width."""

from dataclasses import dataclass

from lrformer.core import ConfigError

GOAL_SHAPES = ("256x6x197", "64x6x1024", "8x12x4096")
GOAL_WIDTHS = (32, 64, 128)
SMALL_SHAPES = ("4x6x65", "2x6x197")
SMALL_WIDTHS = (32, 64)


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Batch, heads, tokens and head width of one call."""

    batch: int
    num_heads: int
    num_tokens: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.num_heads}x{self.num_tokens}x{self.head_dim}"

    @property
    def num_elements(self) -> int:
        """How many numbers a query tensor holds."""
        return self.batch * self.num_heads * self.num_tokens * self.head_dim

    @property
    def num_scores(self) -> int:
        """How many numbers the matrix of weights holds."""
        return self.batch * self.num_heads * self.num_tokens**2

    @property
    def matrix_bytes(self) -> int:
        """About what forward and backward take with whole matrices in float32, six of them alive."""
        return 6 * 4 * self.num_scores


def parse_shapes(texts: tuple[str, ...], widths: tuple[int, ...]) -> list[AttentionShape]:
    """Return every shape at every width, or raise for one that is no `batch x heads x tokens`."""
    if not texts or not widths:
        raise ConfigError(
            "shapes and widths must name at least one each, such as 64x6x1024 and 64."
        )
    for width in widths:
        if width < 1:
            raise ConfigError(f"widths ({width}) must be at least 1.")
    shapes = []
    for text in texts:
        parts = text.lower().split("x")
        if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise ConfigError(
                f"shapes ({text!r}) must be batch x heads x tokens in whole numbers, such as 64x6x1024."
            )
        batch, num_heads, num_tokens = map(int, parts)
        shapes += [
            AttentionShape(batch=batch, num_heads=num_heads, num_tokens=num_tokens, head_dim=width)
            for width in widths
        ]
    return shapes
