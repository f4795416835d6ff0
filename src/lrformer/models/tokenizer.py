"""From inputs to tokens: patches, convolutions, or a linear map of a vector."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lrformer.core import ConfigError


def check_sizes(**sizes: int) -> None:
    """Raise unless every size is at least one."""
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name} ({size}) must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class PatchTokens:
    """Non-overlapping square patches, one token each."""

    img_size: int = 224
    patch_size: int = 16
    in_chans: int = 3

    def __post_init__(self) -> None:
        check_sizes(img_size=self.img_size, patch_size=self.patch_size, in_chans=self.in_chans)

    def build(self, embed_dim: int) -> "PatchEmbed":
        """Return the module that makes these tokens."""
        return PatchEmbed(self, embed_dim)


@dataclass(frozen=True, kw_only=True)
class ConvTokens:
    """Overlapping convolutions with pooling, as in compact convolutional transformers."""

    img_size: int = 32
    in_chans: int = 3
    num_convs: int = 1
    kernel_size: int = 3

    def __post_init__(self) -> None:
        check_sizes(img_size=self.img_size, in_chans=self.in_chans)

    def build(self, embed_dim: int) -> "ConvEmbed":
        """Return the module that makes these tokens."""
        return ConvEmbed(self, embed_dim)


@dataclass(frozen=True, kw_only=True)
class VectorTokens:
    """A vector of `num_inputs` numbers, mapped linearly and injectively to `num_tokens` tokens."""

    num_inputs: int = 2
    num_tokens: int = 8

    def build(self, embed_dim: int) -> "VectorEmbed":
        """Return the module that makes these tokens."""
        return VectorEmbed(self, embed_dim)


class Tokenizer(nn.Module):
    """What a transformer reads: (b, n, e) tokens with a grid, where they come from a picture."""

    grid_size: tuple[int, int] | None
    num_tokens: int

    def reset_parameters(self) -> None:
        """Draw the weights anew where this tokenizer needs others than the rest of the model."""

    def set_grid(self, side: int, *, num_halvings: int = 0) -> None:
        """Set how many tokens there are: a square of `side`, halved this often, each time rounded up."""
        for _ in range(num_halvings):
            side = (side + 1) // 2
        self.grid_size = (side, side)
        self.num_tokens = side * side

    def set_input_size(self, img_size: int) -> None:
        """Take pictures of another size from now on."""
        raise ConfigError(
            f"img_size ({img_size}) cannot be set: {type(self).__name__} reads vectors, not pictures."
        )


class PatchEmbed(Tokenizer):
    """One strided convolution: a linear map of every patch."""

    def __init__(self, config: PatchTokens, embed_dim: int) -> None:
        super().__init__()
        self.in_chans = config.in_chans
        self.patch_size = config.patch_size
        self.proj = nn.Conv2d(config.in_chans, embed_dim, config.patch_size, config.patch_size)
        self.set_input_size(config.img_size)

    def set_input_size(self, img_size: int) -> None:
        """Take pictures of another size from now on."""
        if img_size < 1 or img_size % self.patch_size != 0:
            raise ConfigError(
                f"img_size ({img_size}) must be a multiple of patch_size ({self.patch_size})."
            )
        self.img_size = img_size
        self.set_grid(img_size // self.patch_size)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n e"]:
        """Return one token for each patch, row by row."""
        check_images(x, self.in_chans, self.img_size)
        return self.proj(x).flatten(2).mT


class ConvEmbed(Tokenizer):
    """Convolution, ReLU and max pooling by two, `num_convs` times."""

    def __init__(self, config: ConvTokens, embed_dim: int) -> None:
        super().__init__()
        if config.num_convs < 1 or config.kernel_size % 2 != 1:
            raise ConfigError(
                f"num_convs ({config.num_convs}) must be at least 1 and kernel_size "
                f"({config.kernel_size}) odd."
            )
        self.in_chans = config.in_chans
        widths = [config.in_chans] + [64] * (config.num_convs - 1) + [embed_dim]
        self.convs = nn.ModuleList(
            nn.Conv2d(
                width_in, width_out, config.kernel_size, padding=config.kernel_size // 2, bias=False
            )
            for width_in, width_out in pairwise(widths)
        )
        self.set_input_size(config.img_size)

    def set_input_size(self, img_size: int) -> None:
        """Take pictures of another size from now on."""
        check_sizes(img_size=img_size)
        self.img_size = img_size
        self.set_grid(img_size, num_halvings=len(self.convs))

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n e"]:
        """Return one token for each position of the last feature map, row by row."""
        check_images(x, self.in_chans, self.img_size)
        for conv in self.convs:
            x = F.max_pool2d(conv(x).relu(), 3, stride=2, padding=1)
        return x.flatten(2).mT


class VectorEmbed(Tokenizer):
    """One Linear from the whole vector to all tokens, so that every token sees every coordinate."""

    def __init__(self, config: VectorTokens, embed_dim: int) -> None:
        super().__init__()
        if config.num_inputs < 1 or config.num_tokens < 1:
            raise ConfigError(
                f"num_inputs ({config.num_inputs}) and num_tokens ({config.num_tokens}) must be positive."
            )
        self.num_inputs = config.num_inputs
        self.num_tokens = config.num_tokens
        self.grid_size = None
        self.proj = nn.Linear(config.num_inputs, config.num_tokens * embed_dim)

    def reset_parameters(self) -> None:
        """Draw a map that keeps distances on the scale of the tokens: a point is not to drown in them."""
        nn.init.normal_(self.proj.weight)

    def forward(self, x: Float[Tensor, "b inputs"]) -> Float[Tensor, "b n e"]:
        """Return `num_tokens` linear maps of the vector."""
        if x.ndim != 2 or x.shape[1] != self.num_inputs:
            raise ConfigError(
                f"input has shape {tuple(x.shape)}; it must be (batch, {self.num_inputs})."
            )
        return self.proj(x).unflatten(-1, (self.num_tokens, -1))


def check_images(x: Tensor, in_chans: int, img_size: int) -> None:
    """Raise unless `x` is a batch of pictures of the size that the model was built for."""
    if x.ndim != 4 or tuple(x.shape[1:]) != (in_chans, img_size, img_size):
        raise ConfigError(
            f"input has shape {tuple(x.shape)}; it must be (batch, {in_chans}, {img_size}, {img_size}). "
            f"For another image size call set_input_size, for other channels build with in_chans."
        )


def resize_pos_embed(
    pos_embed: Float[Tensor, "1 n e"],
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    *,
    num_prefix_tokens: int,
) -> Float[Tensor, "1 m e"]:
    """Return position embeddings for another grid, by bicubic interpolation; prefix tokens stay."""
    if old_grid == new_grid:
        return pos_embed
    prefix, grid = pos_embed[:, :num_prefix_tokens], pos_embed[:, num_prefix_tokens:]
    picture = grid.unflatten(1, old_grid).permute(0, 3, 1, 2).float()
    picture = F.interpolate(
        picture, size=new_grid, mode="bicubic", antialias=True, align_corners=False
    )
    return torch.cat([prefix, picture.flatten(2).mT.to(pos_embed.dtype)], 1)
