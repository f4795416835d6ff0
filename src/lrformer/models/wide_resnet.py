"""Wide residual networks: the backbone of the paper's tables 1 and 2 (WRN-28-10, 36.5M parameters)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core import ConfigError


@dataclass(frozen=True, kw_only=True)
class WideResNetConfig:
    """Everything that makes a `WideResNet`; names as in timm.

    Attributes:
        drop_rate: of single values between the convolutions of a block.
        filter_drop_rate: of whole filters before every convolution but the first, as in the reference of SNGP.
        raw_shortcut: whether a projecting shortcut reads a block's input before its norm, as in uncertainty-baselines.
    """

    num_classes: int = 10
    depth: int = 28
    widen_factor: int = 10
    in_chans: int = 3
    img_size: int = 32
    drop_rate: float = 0.0
    filter_drop_rate: float = 0.0
    raw_shortcut: bool = False

    def __post_init__(self) -> None:
        if self.depth < 10 or (self.depth - 4) % 6:
            raise ConfigError(
                f"depth ({self.depth}) must be 6 n + 4 with n at least 1: 10, 16, 28."
            )
        if self.widen_factor < 1:
            raise ConfigError(f"widen_factor ({self.widen_factor}) must be at least 1.")
        if self.num_classes < 0:
            raise ConfigError(
                f"num_classes ({self.num_classes}) must be at least 0; 0 leaves out the classifier."
            )
        for name in ("drop_rate", "filter_drop_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 0 and below 1.")

    def build(self) -> "WideResNet":
        """Return the model, with random weights."""
        return WideResNet(self)


class WideBlock(nn.Module):
    """Pre-activation residual block of two 3x3 convolutions with dropout between them."""

    def __init__(
        self,
        in_width: int,
        width: int,
        *,
        stride: int,
        drop_rate: float = 0.0,
        filter_drop_rate: float = 0.0,
        raw_shortcut: bool = False,
    ) -> None:
        super().__init__()
        self.raw_shortcut = raw_shortcut
        self.bn1 = nn.BatchNorm2d(in_width)
        self.conv1 = nn.Conv2d(in_width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(drop_rate)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.filter_drop = filter_dropout(filter_drop_rate)
        self.act = nn.ReLU()
        self.shortcut = (
            nn.Conv2d(in_width, width, 1, stride=stride, bias=False)
            if stride != 1 or in_width != width
            else None
        )

    def forward(self, x: Float[Tensor, "b _ _ _"]) -> Float[Tensor, "b _ _ _"]:
        """Return the shortcut plus the branch; a projecting shortcut reads the activated input, or `x` if it is raw."""
        activated = self.act(self.bn1(x))
        out = self.act(self.bn2(self.conv1(self.filter_drop(activated))))
        branch = self.conv2(self.filter_drop(self.drop(out)))
        if self.shortcut is None:
            return x + branch
        return self.shortcut(x if self.raw_shortcut else activated) + branch


def filter_dropout(rate: float) -> nn.Module:
    """Return what drops whole filters in training; without a rate there is nothing to trace or to bound."""
    return nn.Dropout2d(rate) if rate else nn.Identity()


def wide_stages(
    in_width: int,
    widths: Sequence[int],
    depths: Sequence[int],
    *,
    drop_rate: float = 0.0,
    filter_drop_rate: float = 0.0,
    raw_shortcut: bool = False,
) -> nn.Sequential:
    """Return the blocks of all stages; each stage after the first halves the side of the feature map."""
    blocks: list[nn.Module] = []
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            blocks.append(
                WideBlock(
                    in_width,
                    width,
                    stride=stride,
                    drop_rate=drop_rate,
                    filter_drop_rate=filter_drop_rate,
                    raw_shortcut=raw_shortcut,
                )
            )
            in_width = width
    return nn.Sequential(*blocks)


class WideResNet(nn.Module):
    """WRN-`depth`-`widen_factor`; `num_classes=0` gives the pooled features."""

    def __init__(self, config: WideResNetConfig | None = None) -> None:
        super().__init__()
        config = config or WideResNetConfig()
        self.config = config
        self.num_classes = config.num_classes
        self.input_shape = (config.in_chans, config.img_size, config.img_size)
        widths = [16 * config.widen_factor * factor for factor in (1, 2, 4)]
        self.num_features = widths[-1]

        self.conv1 = nn.Conv2d(config.in_chans, 16, 3, padding=1, bias=False)
        depths = [(config.depth - 4) // 6] * len(widths)
        self.filter_drop = filter_dropout(config.filter_drop_rate)
        self.blocks = wide_stages(
            16,
            widths,
            depths,
            drop_rate=config.drop_rate,
            filter_drop_rate=config.filter_drop_rate,
            raw_shortcut=config.raw_shortcut,
        )
        self.bn = nn.BatchNorm2d(self.num_features)
        self.act = nn.ReLU()
        self.fc = nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.reset_classifier(config.num_classes)

    def forward(self, x: Float[Tensor, "b _ _ _"]) -> Float[Tensor, "b _"]:
        """Return the logits, or the features when there is no classifier."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Float[Tensor, "b _ _ _"]) -> Float[Tensor, "b e _ _"]:
        """Return the activated feature map before pooling."""
        # The layout that convolutions are fastest in on a GPU.
        x = x.contiguous(memory_format=torch.channels_last)
        return self.act(self.bn(self.blocks(self.filter_drop(self.conv1(x)))))

    def forward_head(
        self, x: Float[Tensor, "b e _ _"], pre_logits: bool = False
    ) -> Float[Tensor, "b _"]:
        """Return the logits of a feature map; its mean over positions if `pre_logits`."""
        features = torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1)
        return features if pre_logits else self.fc(features)

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.fc

    def reset_classifier(self, num_classes: int) -> None:
        """Put a new classifier for `num_classes` on top; 0 removes it."""
        self.num_classes = num_classes
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.fc.to(self.conv1.weight)
