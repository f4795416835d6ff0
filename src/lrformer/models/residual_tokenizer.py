"""Tokens from residual convolutions: what a small image needs before a transformer can read it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.models.tokenizer import Tokenizer, check_images, check_sizes
from lrformer.models.wide_resnet import wide_stages


@dataclass(frozen=True, kw_only=True)
class ResidualTokens:
    """Stages of residual blocks as in wide residual networks, then one strided convolution to the tokens.

    Attributes:
        widths: channels of every stage; each stage after the first halves the side, and so do the tokens.
        depths: blocks of every stage.
    """

    img_size: int = 32
    in_chans: int = 3
    widths: tuple[int, ...] = (128, 256)
    depths: tuple[int, ...] = (2, 3)

    def __post_init__(self) -> None:
        # A record or a command line holds lists.
        object.__setattr__(self, "widths", tuple(self.widths))
        object.__setattr__(self, "depths", tuple(self.depths))
        check_sizes(img_size=self.img_size, in_chans=self.in_chans)
        if not self.widths or len(self.widths) != len(self.depths):
            raise ConfigError(
                f"widths ({self.widths}) and depths ({self.depths}) must name the same stages, at least one."
            )
        if min(*self.widths, *self.depths) < 1:
            raise ConfigError(
                f"widths ({self.widths}) and depths ({self.depths}) must be at least 1."
            )

    def build(self, embed_dim: int) -> "ResidualEmbed":
        """Return the module that makes these tokens."""
        return ResidualEmbed(self, embed_dim)


class ResidualEmbed(Tokenizer):
    """Convolution, stages of pre-activation blocks, BatchNorm, ReLU and a convolution of stride two."""

    def __init__(self, config: ResidualTokens, embed_dim: int) -> None:
        super().__init__()
        self.in_chans = config.in_chans
        self.num_halvings = len(config.widths)
        first, last = config.widths[0], config.widths[-1]
        self.conv = nn.Conv2d(config.in_chans, first, 3, padding=1, bias=False)
        self.blocks = wide_stages(first, config.widths, config.depths)
        self.bn = nn.BatchNorm2d(last)
        self.act = nn.ReLU()
        self.proj = nn.Conv2d(last, embed_dim, 3, stride=2, padding=1)
        self.set_input_size(config.img_size)

    def reset_parameters(self) -> None:
        """Draw the convolutions before a ReLU as residual networks do; the tokens as the rest of the model."""
        for module in (self.conv, *self.blocks.modules()):
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def set_input_size(self, img_size: int) -> None:
        """Take pictures of another size from now on."""
        check_sizes(img_size=img_size)
        self.img_size = img_size
        self.set_grid(img_size, num_halvings=self.num_halvings)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n e"]:
        """Return one token for each position of the last feature map, row by row."""
        check_images(x, self.in_chans, self.img_size)
        # The layout that convolutions are fastest in on a GPU, and in which tokens need no copy.
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.act(self.bn(self.blocks(self.conv(x))))
        return self.proj(x).flatten(2).mT
