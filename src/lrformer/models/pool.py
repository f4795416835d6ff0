"""From tokens to one feature vector."""

from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core import ConfigError

GlobalPool = Literal["token", "avg", "seq"]


class Pool(nn.Module):
    """The class token, the mean of the tokens, or their learned average (sequence pooling)."""

    def __init__(self, kind: str, embed_dim: int) -> None:
        super().__init__()
        if kind not in get_args(GlobalPool):
            raise ConfigError(
                f"global_pool ({kind!r}) must be one of {', '.join(get_args(GlobalPool))}."
            )
        self.kind = kind
        self.score = nn.Linear(embed_dim, 1) if kind == "seq" else None

    def forward(self, tokens: Float[Tensor, "b n e"]) -> Float[Tensor, "b e"]:
        """Return one vector a sample."""
        if self.kind == "token":
            return tokens[:, 0]
        if self.score is not None:
            return (self.score(tokens).softmax(1).mT @ tokens).squeeze(1)
        return tokens.mean(1)
