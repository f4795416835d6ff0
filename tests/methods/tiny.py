"""Backbones small enough for a test, the digits split, and a training loop of a dozen lines."""

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lrformer.methods import Method, create_method
from lrformer.models import create_model
from lrformer.models.wide_resnet import WideResNetConfig

NUM_CLASSES = 5


class TinyMLP(nn.Module):
    """Two residual layers on flattened 8x8 digits, with dropout."""

    def __init__(self, width: int = 32, drop_rate: float = 0.1) -> None:
        super().__init__()
        self.num_features = width
        self.embed = nn.Linear(64, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.flatten(1))
        for layer in self.layers:
            x = x + self.drop(layer(x).relu())
        return x


class TinyConvNet(nn.Module):
    """Two convolutions with batch norm, pooled."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.num_features = width
        self.input_shape = (1, 8, 8)
        self.conv1 = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.drop = nn.Dropout2d(0.1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.bn(self.conv1(x)).relu())
        return self.conv2(x).relu().mean((-2, -1))


def tiny_lrformer(**overrides) -> nn.Module:
    return create_model(
        "lrformer_digits", num_classes=0, **{"depth": 2, "proj_drop_rate": 0.1, **overrides}
    )


def tiny_wide_resnet() -> nn.Module:
    config = WideResNetConfig(
        depth=10, widen_factor=1, in_chans=1, img_size=8, num_classes=0, drop_rate=0.1
    )
    return config.build()


def tiny_timm() -> nn.Module:
    import timm

    return timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=4, in_chans=1, depth=1, embed_dim=24,
        num_heads=2, num_classes=0, proj_drop_rate=0.1,
    )  # fmt: skip


# What makes each method small; everything else is its default.
SMALL = {
    "mcd_gp": {"num_random_features": 128},
    "dnn_gp": {"num_random_features": 128},
    "sngp": {"num_random_features": 128},
    "lrformer": {"num_random_features": 128},
    "duq": {"centroid_dim": 16, "gamma": 0.9, "length_scale": 0.3},
    "deep_ensemble": {"num_members": 2},
}


def small_method(name: str, backbone: Callable[[], nn.Module] | None = None, **overrides) -> Method:
    backbone = backbone or (tiny_lrformer if name == "lrformer" else TinyMLP)
    return create_method(name, backbone, NUM_CLASSES, **{**SMALL.get(name, {}), **overrides})


def digits() -> tuple[TensorDataset, TensorDataset, Tensor]:
    """Return training and test images of the digits 0 to 4, and images of 5 to 9."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    y = torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    known = y < NUM_CLASSES
    x_known, y_known = x[known], y[known]
    return (
        TensorDataset(x_known[:600], y_known[:600]),
        TensorDataset(x_known[600:], y_known[600:]),
        x[~known],
    )


def fit(method: Method, data: TensorDataset, *, epochs: int, learning_rate: float = 3e-3) -> None:
    loader = DataLoader(
        data, batch_size=50, shuffle=True, generator=torch.Generator().manual_seed(0)
    )
    method.train()
    method.prepare(loader)
    for stage in range(method.stage, method.num_stages):
        method.start_stage(stage)
        optimizer = torch.optim.AdamW(method.stage_parameters(), lr=learning_rate)
        for _ in range(epochs):
            method.train()
            method.on_epoch_start()
            for x, y in loader:
                optimizer.zero_grad()
                method.loss(x, y).backward()
                optimizer.step()
                method.after_step(x, y)
        method.finish_stage()
    method.fit_posterior(loader)
    method.eval()
