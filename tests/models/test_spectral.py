import copy
import math

import pytest
import torch
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.models import create_model
from lrformer.models.spectral import (
    ConvSpectralNorm,
    LinearSpectralNorm,
    SpectralBatchNorm2d,
    apply_spectral_norm,
    fold_spectral_norm,
    spectral_norms,
)
from tests.tolerance import assert_close


def dense_matrix(conv: nn.Conv2d, input_size: tuple[int, int]) -> Tensor:
    """The convolution as a matrix: its columns are what it makes of every unit vector."""
    shape = (conv.in_channels, *input_size)
    units = torch.eye(conv.in_channels * input_size[0] * input_size[1]).view(-1, *shape)
    with torch.no_grad():
        bias = conv.bias if conv.bias is not None else torch.zeros(conv.out_channels)
        return (conv(units) - bias.view(-1, 1, 1)).flatten(1).T.double()


@pytest.mark.parametrize(
    ("arguments", "input_size"),
    [
        ({"kernel_size": 3, "padding": 1}, (6, 6)),
        ({"kernel_size": 3, "padding": 1, "stride": 2}, (7, 6)),
        ({"kernel_size": 3, "padding": 2, "dilation": 2}, (6, 5)),
        ({"kernel_size": 3, "padding": 1, "groups": 2}, (5, 5)),
        ({"kernel_size": 1, "stride": 2}, (6, 6)),
        ({"kernel_size": 3, "stride": 3}, (8, 8)),
        ({"kernel_size": (1, 3), "padding": (0, 1)}, (4, 6)),
    ],
)
def test_a_convolution_is_measured_by_the_svd_of_its_dense_matrix(
    arguments: dict, input_size: tuple[int, int]
) -> None:
    conv = nn.Conv2d(4, 6, **arguments)
    norm = ConvSpectralNorm(conv, input_size, bound=1.0)
    norm.iterate(conv.weight, 300)
    matrix = dense_matrix(conv, input_size)
    assert norm.sigma(conv.weight).item() == pytest.approx(
        torch.linalg.matrix_norm(matrix, 2).item(), rel=1e-4
    )
    x, y = torch.randn(1, 4, *input_size), torch.randn_like(norm.left)
    forward = (norm.apply_map(conv.weight, x) * y).sum()
    adjoint = (x * norm.apply_adjoint(conv.weight, y)).sum()
    assert forward.item() == pytest.approx(adjoint.item(), rel=1e-3, abs=1e-4)


def test_the_unfolded_kernel_would_have_been_another_number() -> None:
    conv = nn.Conv2d(4, 6, 3, padding=1)
    exact = torch.linalg.matrix_norm(dense_matrix(conv, (6, 6)), 2)
    unfolded = torch.linalg.matrix_norm(conv.weight.detach().flatten(1), 2)
    assert exact > 1.2 * unfolded


def test_the_adjoint_of_a_dilated_convolution_that_skips_rows_is_its_transpose() -> None:
    conv = nn.Conv2d(2, 3, 2, stride=2, dilation=2)
    norm = ConvSpectralNorm(conv, (7, 8), bound=1.0)
    weight = conv.weight.detach().double()
    x, y = (torch.randn(1, *shape, dtype=torch.float64) for shape in ((2, 7, 8), (3, 3, 3)))
    forward = (norm.apply_map(weight, x) * y).sum()
    assert_close(forward, (x * norm.apply_adjoint(weight, y)).sum(), 1e-8)


@pytest.mark.parametrize(("bound", "is_scaled"), [(0.5, True), (100.0, False)])
def test_normalization_is_soft(bound: float, is_scaled: bool) -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    raw = [layer.weight.detach().clone() for layer in (model[0], model[2])]
    apply_spectral_norm(model, bound=bound)
    for _ in range(200):
        model(torch.randn(2, 20))  # training mode: one step of power iteration each
    model.eval()
    for layer, before in zip((model[0], model[2]), raw, strict=True):
        sigma = torch.linalg.matrix_norm(layer.weight.detach(), 2).item()
        if is_scaled:
            assert sigma == pytest.approx(bound, rel=1e-3)
        else:
            assert torch.equal(layer.weight, before)


def test_the_gradient_is_that_of_the_quotient() -> None:
    layer = nn.Linear(6, 4, bias=False)
    raw = layer.weight.detach().double()
    apply_spectral_norm(nn.Sequential(layer), bound=0.3)
    norm = next(norm for _, norm in spectral_norms(layer)).double()
    layer.double().eval()
    norm.iterate(raw, 500)
    target = torch.randn(4, 6, dtype=torch.float64)
    (layer.weight * target).sum().backward()
    reference = raw.clone().requires_grad_()
    (0.3 * reference / torch.linalg.matrix_norm(reference, 2) * target).sum().backward()
    original = layer.parametrizations["weight"].original
    assert reference.grad is not None
    assert_close(original.grad, reference.grad, 1e-5)


def test_evaluation_keeps_the_weight_until_it_changes() -> None:
    layer = nn.Linear(8, 8)
    apply_spectral_norm(nn.Sequential(layer), bound=0.1)
    layer.eval()
    with torch.no_grad():
        first = layer.weight
        assert layer.weight is first
        layer.parametrizations["weight"].original.mul_(2)
        changed = layer.weight
        assert changed is not first
        layer.load_state_dict(layer.state_dict())
        assert layer.weight is not changed
    assert layer.weight.requires_grad  # with gradients the graph is there


def test_evaluation_follows_a_power_iteration_that_has_gone_on() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 40).double()
    apply_spectral_norm(nn.Sequential(layer), bound=0.1)
    layer.eval()
    (_, norm), *_ = spectral_norms(nn.Sequential(layer))
    with torch.no_grad():
        # From below: the weight is still too large.
        assert torch.linalg.matrix_norm(layer.weight, ord=2) > 0.1001
        norm.iterate(layer.parametrizations["weight"].original, 2000)
        assert torch.linalg.matrix_norm(layer.weight, ord=2) == pytest.approx(0.1, rel=1e-4)


def test_power_iteration_moves_in_training_and_rests_in_evaluation() -> None:
    layer = nn.Linear(40, 40)
    apply_spectral_norm(nn.Sequential(layer), bound=1.0)
    norm = next(norm for _, norm in spectral_norms(layer))
    before = norm.left.clone()
    layer.eval()(torch.randn(2, 40))
    assert torch.equal(norm.left, before)
    layer.train()(torch.randn(2, 40))
    assert not torch.equal(norm.left, before)


def test_folding_changes_nothing_but_the_parametrization() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 16, 4)).eval()
    apply_spectral_norm(model, bound=0.2, input_shape=(2, 6, 6))
    x = torch.randn(2, 2, 6, 6)
    expected = model(x)
    fold_spectral_norm(model)
    assert not list(spectral_norms(model))
    assert torch.equal(model(x), expected)
    assert set(model.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_folding_a_deep_copy_leaves_the_original_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    apply_spectral_norm(model, bound=0.2)
    x = torch.randn(2, 3)
    expected = model(x)
    copied = copy.deepcopy(model)
    fold_spectral_norm(copied)
    assert not list(spectral_norms(copied))
    assert torch.equal(copied(x), expected)
    assert len(list(spectral_norms(model))) == 2
    assert torch.equal(model(x), expected)
    assert torch.equal(copy.deepcopy(model)(x), expected)


def test_on_a_transformer_queries_keys_and_values_are_left_alone() -> None:
    model = create_model("lrformer_digits", num_classes=0, depth=1)
    names = apply_spectral_norm(model, bound=6.0)
    assert names == ["tokenizer.proj", "blocks.0.attn.proj", "blocks.0.mlp.fc1", "blocks.0.mlp.fc2"]
    model(torch.randn(2, 1, 8, 8)).sum().backward()


def test_a_convolution_without_a_known_input_size_asks_for_it() -> None:
    with pytest.raises(ConfigError, match="pass input_shape"):
        apply_spectral_norm(nn.Sequential(nn.Conv2d(1, 2, 3)), bound=1.0)
    with pytest.raises(ConfigError, match="no Linear or Conv2d"):
        apply_spectral_norm(nn.Sequential(nn.ReLU()), bound=1.0)
    with pytest.raises(ConfigError, match="zero padding"):
        ConvSpectralNorm(nn.Conv2d(1, 2, 3, padding="same"), (4, 4), bound=1.0)
    with pytest.raises(ConfigError, match=r"bound \(0.0\)"):
        LinearSpectralNorm(torch.randn(2, 2), (2,), bound=0.0)


@pytest.mark.parametrize("bound", [0.5, 50.0])
def test_spectral_batch_norm_holds_its_gain_under_the_bound(bound: float) -> None:
    plain = nn.BatchNorm2d(3)
    with torch.no_grad():
        plain.weight.copy_(torch.tensor([1.0, -4.0, 2.0]))
        plain.bias.copy_(torch.tensor([0.5, 0.0, -1.0]))
        assert plain.running_var is not None
        plain.running_var.copy_(torch.tensor([1.0, 0.25, 4.0]))
    model = nn.Sequential(nn.Conv2d(1, 3, 1), plain).eval()
    apply_spectral_norm(model, bound=bound, input_shape=(1, 4, 4), batch_norm=True)
    norm = model[1]
    assert isinstance(norm, SpectralBatchNorm2d)
    assert norm.momentum == 0.01
    assert norm.gain.item() == pytest.approx(8.0, rel=1e-4)
    a, b = torch.randn(2, 5, 3, 4, 4)
    factor = min(1.0, bound / 8.0)
    assert_close(norm(a) - norm(b), factor * (plain(a) - plain(b)), 1e-4)
    # The shift is not scaled: at the running mean the output is the bias.
    assert plain.running_mean is not None
    at_mean = norm(plain.running_mean.view(1, 3, 1, 1)).flatten()
    assert_close(at_mean, plain.bias, 1e-6)


def test_spectral_batch_norm_trains_as_batch_norm_below_the_bound() -> None:
    plain, soft = nn.BatchNorm2d(3, momentum=0.01), SpectralBatchNorm2d(3, bound=100.0)
    x = 2 * torch.randn(8, 3, 4, 4) + 1
    assert_close(soft(x), plain(x), 1e-6)
    for name, value in plain.state_dict().items():
        assert_close(soft.state_dict()[name].float(), value.float(), 1e-6)


def test_the_gain_of_a_batch_norm_is_that_of_its_steepest_channel() -> None:
    norm = SpectralBatchNorm2d(2, bound=10.0, eps=0.0).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -6.0]))
        norm.running_var.copy_(torch.tensor([0.25, 4.0]))
    assert float(norm.gain.detach()) == 3.0  # of 1 / 0.5 and 6 / 2


def test_a_spectral_batch_norm_keeps_the_eps_of_the_one_before() -> None:
    plain = nn.BatchNorm2d(3, eps=0.5).eval()
    model = nn.Sequential(nn.Conv2d(1, 3, 1), copy.deepcopy(plain)).eval()
    apply_spectral_norm(model, bound=10.0, input_shape=(1, 4, 4), batch_norm=True)
    x = torch.randn(2, 3, 4, 4)
    assert_close(model[1](x), plain(x), 1e-6)


def test_weights_of_zero_have_a_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))
    for layer in (model[0], model[1], model[3]):
        nn.init.zeros_(layer.weight)
    apply_spectral_norm(model, bound=1.0, input_shape=(1, 4, 4), batch_norm=True)
    model(torch.randn(2, 1, 4, 4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_no_bound_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))
    x = torch.randn(2, 1, 4, 4)
    expected = model.eval()(x)
    apply_spectral_norm(model, bound=math.inf, input_shape=(1, 4, 4), batch_norm=True)
    assert_close(model(x), expected, 1e-6)


@pytest.mark.parametrize("layer", [nn.Conv2d(1, 3, 1), nn.Linear(4, 3)], ids=["conv", "linear"])
def test_a_weight_that_was_zero_is_bounded_when_it_grows(layer: nn.Module) -> None:
    weight = nn.init.zeros_(layer.weight).detach().clone()
    if isinstance(layer, nn.Conv2d):
        norm = ConvSpectralNorm(layer, (4, 4), bound=1.0)
    else:
        norm = LinearSpectralNorm(weight, (4,), bound=1.0)
    norm.iterate(weight, 20)  # zero for a while
    grown = torch.randn_like(weight)
    norm.iterate(grown, 50)
    exact = torch.linalg.matrix_norm(grown.flatten(1), 2).item()
    assert norm.sigma(grown).item() == pytest.approx(exact, rel=1e-3)


def test_a_model_in_float64_is_bounded_as_one_in_float32() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 2)).double()
    apply_spectral_norm(model, bound=0.1, input_shape=(1, 4, 4))
    for _ in range(100):
        model(torch.randn(2, 1, 4, 4, dtype=torch.float64))
    sigma = torch.linalg.matrix_norm(model.eval()[2].weight.detach(), 2).item()
    assert sigma == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("missing", ["affine", "track_running_stats"])
def test_a_batch_norm_that_cannot_be_bounded_is_refused_before_anything_changes(
    missing: str,
) -> None:
    norm = nn.BatchNorm2d(3, **{missing: False})
    model = nn.Sequential(nn.Conv2d(1, 3, 1), norm)
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(ConfigError, match=f"1 is a BatchNorm2d with .*{missing}=False"):
        apply_spectral_norm(model, bound=1.0, input_shape=(1, 4, 4), batch_norm=True)
    assert {name: type(module) for name, module in model.named_modules()} == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_spectral_batch_norm_has_the_state_of_the_one_before_to_the_bit(
    dtype: torch.dtype,
) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3)).to(dtype)
    model(torch.randn(5, 1, 4, 4, dtype=dtype))
    model[1].requires_grad_(requires_grad=False)
    before = {name: value.clone() for name, value in model[1].state_dict().items()}
    apply_spectral_norm(model, bound=1.0, input_shape=(1, 4, 4), batch_norm=True)
    after = model[1].state_dict()
    assert isinstance(model[1], SpectralBatchNorm2d)
    for name, value in before.items():
        assert torch.equal(after[name], value)
        assert after[name].dtype == value.dtype
    assert not any(parameter.requires_grad for parameter in model[1].parameters())
    assert model(torch.randn(5, 1, 4, 4, dtype=dtype)).dtype == dtype


def test_a_copy_that_was_made_in_inference_mode_is_used() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    apply_spectral_norm(model, bound=0.1)
    x = torch.randn(3, 4)
    with torch.inference_mode():
        copied = copy.deepcopy(model.eval())
        assert_close(copied(x), model(x), 1e-6)
