"""Which layers soft spectral normalization bounds, and which it refuses by name."""

import copy
from collections import OrderedDict

import pytest
import timm
import timm.layers
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lrformer.core import ConfigError
from lrformer.heads import LinearHead
from lrformer.models.spectral import SpectralBatchNorm2d, apply_spectral_norm


class Standardized(nn.Conv2d):
    """Whatever scale its weight has is divided out again."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self._conv_forward(input, self.weight / self.weight.norm(), self.bias)


class Padded(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002
        return super()._conv_forward(nn.functional.pad(input, (0, 1, 0, 1)), weight, bias)


class Rounded(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return nn.functional.linear(input, self.weight.round(), self.bias)


class Activated(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input).relu()


@pytest.mark.parametrize(
    ("layer", "way_out"),
    [
        (Standardized(2, 3, 3), r"build the model with nn.Conv2d, or name '1' in exclude"),
        (Padded(2, 3, 3), "build the model with nn.Conv2d"),
        (Rounded(4, 4), "build the model with nn.Linear"),
        (Activated(2), "leave batch_norm out"),
        (timm.layers.StdConv2d(2, 3, 3), "build the model with nn.Conv2d"),
        (timm.layers.ScaledStdConv2d(2, 3, 3), "build the model with nn.Conv2d"),
        (timm.layers.Conv2dSame(2, 3, 3), "build the model with nn.Conv2d"),
        (timm.layers.BatchNormAct2d(2), "leave batch_norm out"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_layer_that_computes_more_than_its_weight_says_is_refused_before_anything_changes(
    layer: nn.Module, way_out: str
) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1), copy.deepcopy(layer))
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(ConfigError, match=f"(?i)1 is a {type(layer).__name__}.*{way_out}"):
        apply_spectral_norm(model, bound=1.0, input_shape=(2, 4, 4), batch_norm=True)
    assert {name: type(module) for name, module in model.named_modules()} == before


def test_an_odd_layer_that_is_left_out_is_no_obstacle() -> None:
    model = nn.Sequential(OrderedDict(plain=nn.Conv2d(2, 2, 1), odd=Standardized(2, 2, 1)))
    model.append(Activated(2))
    assert apply_spectral_norm(model, bound=1.0, input_shape=(2, 4, 4), exclude=["odd"]) == [
        "plain"
    ]


@pytest.mark.parametrize(
    "layer",
    [
        LinearHead(6, 4),
        timm.layers.Linear(6, 4),
        nn.modules.linear.NonDynamicallyQuantizableLinear(6, 4),
        parametrize.register_parametrization(nn.Linear(6, 4), "weight", nn.ReLU()),
        parametrize.register_parametrization(timm.layers.Linear(6, 4), "weight", nn.ReLU()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_subclass_that_computes_with_its_weight_is_bounded(layer: nn.Module) -> None:
    model = nn.Sequential(copy.deepcopy(layer))
    apply_spectral_norm(model, bound=0.1)
    for _ in range(100):
        model(torch.randn(2, 6))
    model.eval()
    with torch.no_grad():
        matrix = (model(torch.eye(6)) - model(torch.zeros(6, 6))).T
    assert torch.linalg.matrix_norm(matrix, 2).item() == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "settings", "num_layers"),
    [
        ("resnet18", {}, 20),
        ("vit_tiny_patch16_224", {"depth": 1, "img_size": 32}, 4),
        ("deit_tiny_distilled_patch16_224", {"depth": 1, "img_size": 32}, 4),
    ],
)
def test_every_layer_of_a_plain_timm_model_is_bounded(
    name: str, settings: dict, num_layers: int
) -> None:
    model = timm.create_model(name, num_classes=0, **settings)
    names = apply_spectral_norm(model, bound=3.0, input_shape=(3, 32, 32), batch_norm=True)
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert len(names) == num_layers
    assert all(isinstance(part, SpectralBatchNorm2d) for part in norms)


def test_batch_norms_that_are_bounded_already_may_be_bounded_again() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    for bound in (2.0, 0.5):
        apply_spectral_norm(model, bound=bound, input_shape=(3, 8, 8), batch_norm=True)
    assert isinstance(model[1], SpectralBatchNorm2d)


def test_frozen_parts_stay_frozen() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    model[1].eval()
    apply_spectral_norm(model, bound=1.0, input_shape=(3, 8, 8))
    assert [part.training for part in model] == [True, False, True]
    model.eval()
    model[2].train()
    apply_spectral_norm(model, bound=1.0, input_shape=(3, 8, 8), batch_norm=True)
    assert [part.training for part in model] == [False, False, True]


@pytest.mark.parametrize(
    "padding", [{"padding_mode": "reflect", "padding": 1}, {"padding": "same"}]
)
def test_a_padding_that_is_another_map_is_refused_before_anything_changes(padding) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 3, **padding))
    with pytest.raises(ConfigError, match="needs zero padding given by numbers"):
        apply_spectral_norm(model, bound=1.0, input_shape=(2, 4, 4))
    assert not parametrize.is_parametrized(model[0])


@pytest.mark.parametrize("sizes", [(9, 2), (2, 9)])
def test_a_convolution_that_runs_at_two_sizes_is_bounded_at_the_larger(sizes) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            first, second = (self.conv(x[..., :size, :size]).mean() for size in sizes)
            return first + second

    model = Twice()
    nn.init.ones_(model.conv.weight)
    apply_spectral_norm(model, bound=1.0, input_shape=(1, 9, 9), num_iterations=50)
    model.train()
    for _ in range(3):
        model(torch.zeros(1, 1, 9, 9))
    model.eval()
    for size in sizes:
        basis = torch.eye(size * size).view(-1, 1, size, size)
        operator = model.conv(basis).flatten(1)
        assert torch.linalg.matrix_norm(operator, 2) <= 1.001
