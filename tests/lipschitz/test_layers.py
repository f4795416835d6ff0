import math

import pytest
import torch
from torch.func import jacrev

from lrformer.core import ConfigError
from lrformer.lipschitz import layers, printed

F64 = torch.float64


def gaussian(*shape, seed=0):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [2, 3, 16])
def test_layer_norm_reaches_its_constant_at_a_constant_token(width):
    gamma, eps = gaussian(width), 1e-5
    jacobian = jacrev(lambda x: torch.nn.functional.layer_norm(x, (width,), gamma, eps=eps))(
        torch.full((width,), 3.0, dtype=F64)
    )
    constant = layers.layer_norm(gamma, eps=eps)
    assert float(torch.linalg.matrix_norm(jacobian, ord=2)) == pytest.approx(constant, rel=1e-9)
    assert constant <= float(gamma.abs().max()) / math.sqrt(eps)


def test_layer_norm_without_eps_has_no_constant():
    assert layers.layer_norm(torch.ones(3), eps=0.0) == math.inf


def test_layer_norm_on_a_ball_holds_inside_it_and_grows_to_the_global_constant():
    gamma, eps = gaussian(4), 1e-6
    x = gaussian(3, 4, seed=1)
    for radius in (0.0, 0.2, 1.0):
        bound = float(layers.layer_norm_on_ball(x, gamma, eps=eps, radius=radius))
        for seed in range(50):
            step = gaussian(3, 4, seed=seed + 2)
            y = x + radius * step / torch.linalg.vector_norm(step, dim=-1, keepdim=True)
            jacobian = jacrev(lambda z: torch.nn.functional.layer_norm(z, (4,), gamma, eps=eps))(y)
            size = float(torch.linalg.matrix_norm(jacobian.reshape(12, 12), ord=2))
            assert size <= bound * (1 + 1e-12)
    wide = float(layers.layer_norm_on_ball(x, gamma, eps=eps, radius=100.0))
    assert wide == pytest.approx(layers.layer_norm(gamma, eps=eps))


def test_layer_norm_on_a_shrinking_ball_is_nearly_exact_for_two_equal_gains():
    x = torch.tensor([[1.0, -1.0, 2.0, -2.0]], dtype=F64)
    bound = float(layers.layer_norm_on_ball(x, torch.ones(4), eps=1e-6, radius=0.0))
    jacobian = jacrev(lambda z: torch.nn.functional.layer_norm(z, (4,), eps=1e-6))(x[0])
    assert float(torch.linalg.matrix_norm(jacobian, ord=2)) == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("width", [3, 8, 128])
def test_entrywise_layer_norm_bound_holds_and_is_far_below_the_printed_one(width):
    gamma, eps = torch.ones(width, dtype=F64), 1e-2
    bound = layers.layer_norm_entrywise(gamma, eps=eps)
    assert bound < width / math.sqrt(eps)
    for seed in range(30):
        x = gaussian(width, seed=seed) * 10 ** ((seed % 7) - 4)
        jacobian = jacrev(lambda z: torch.nn.functional.layer_norm(z, (width,), gamma, eps=eps))(x)
        assert float(jacobian.abs().sum(1).max()) <= bound
    grid = torch.linspace(0, 1, 100_001, dtype=F64)
    peak = (grid.neg() + 1).sqrt() * (2 * (width - 1) / width + grid * (1 + math.sqrt(width)) / 2)
    assert bound * math.sqrt(eps) == pytest.approx(float(peak.max()), rel=1e-8)


def test_rms_norm_reaches_its_constant_at_zero():
    gamma, eps = gaussian(5), 1e-3

    def rms(x):
        return gamma * x / (x.square().mean() + eps).sqrt()

    found = torch.linalg.matrix_norm(jacrev(rms)(torch.zeros(5, dtype=F64)), ord=2)
    assert float(found) == pytest.approx(layers.rms_norm(gamma, eps=eps))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gelu", torch.nn.functional.gelu),
        ("gelu_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        ("silu", torch.nn.functional.silu),
        ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
        ("relu", torch.relu),
    ],
)
def test_activation_constants_are_the_largest_slopes_rounded_up(name, function):
    x = torch.linspace(-12, 12, 2_000_001, dtype=F64, requires_grad=True)
    slope = float(torch.autograd.grad(function(x).sum(), x)[0].abs().max())
    assert slope <= layers.activation_constant(name) <= slope * (1 + 1e-4)


def test_gelu_constant_is_the_closed_form():
    exact = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi)
    assert exact <= layers.activation_constant("gelu") <= exact + 1e-11


def test_an_unknown_activation_is_an_error():
    with pytest.raises(ConfigError, match=r"activation \('swish'\)"):
        layers.activation_constant("swish")


@pytest.mark.parametrize("width", [3, 20])
def test_patch_embedding_constants_are_those_of_the_whole_linear_map(width):
    weight = gaussian(width, 2, 2, 2)
    image = torch.zeros(2, 4, 4, dtype=F64)
    jacobian = jacrev(lambda x: torch.nn.functional.conv2d(x[None], weight, stride=2))(image)
    values = torch.linalg.svdvals(jacobian.reshape(-1, 32))
    upper, lower = layers.patch_embedding(weight)
    assert upper == pytest.approx(float(values[0]))
    assert lower == pytest.approx(float(values[-1]) if width >= 8 else 0.0)


def test_input_normalization_and_pooling_constants():
    std = torch.tensor([0.2, 0.25, 0.5])
    assert layers.input_normalization(std) == pytest.approx((5.0, 2.0))
    with pytest.raises(ConfigError, match="positive in every channel"):
        layers.input_normalization(torch.zeros(3))
    assert layers.pooling("mean", n=16, norm="F") == 0.25
    assert layers.pooling("mean", n=16, norm="max") == 1.0
    assert layers.pooling("cls", n=16, norm="F") == 1.0


def test_the_printed_constant_of_a_layer_norm_without_eps_is_infinite():
    assert printed.layer_norm(torch.ones(3), eps=0.0).value == math.inf
    assert printed.layer_norm(torch.tensor([1.0, -2.0]), eps=4.0).value == 2.0
