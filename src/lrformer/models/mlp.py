"""The two-layer perceptron of a transformer block."""

from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core import ConfigError


def check_mlp_ratio(mlp_ratio: float, embed_dim: int) -> None:
    """Raise unless the perceptron has a hidden unit."""
    if int(embed_dim * mlp_ratio) < 1:
        raise ConfigError(
            f"mlp_ratio ({mlp_ratio}) times embed_dim ({embed_dim}) must be at least 1: the width of the hidden layer."
        )


class Mlp(nn.Module):
    """FC2(GELU(FC1(x))) with dropout (eq. mlp); parameter names as in timm."""

    def __init__(self, embed_dim: int, hidden_dim: int, *, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden_dim, embed_dim)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Float[Tensor, "b n e"]) -> Float[Tensor, "b n e"]:
        """Return every token after the same perceptron."""
        return self.drop2(self.fc2(self.drop1(self.act(self.fc1(x)))))
