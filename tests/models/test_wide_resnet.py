import pytest
import torch
from torch import nn

from lrformer.core import ConfigError
from lrformer.models.spectral import apply_spectral_norm, spectral_norms
from lrformer.models.wide_resnet import WideResNet, WideResNetConfig


def small(**settings) -> WideResNet:
    return WideResNetConfig(**{"depth": 10, "widen_factor": 1, "img_size": 16, **settings}).build()


def test_wrn_28_10_has_36_5_million_parameters() -> None:
    with torch.device("meta"):
        model = WideResNetConfig().build()
    assert sum(parameter.numel() for parameter in model.parameters()) == 36_479_194
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert (
        len(convs) == 28
    )  # 25 of 3x3 and 3 shortcuts; the 28th layer of the name is the classifier
    assert model.num_features == 640


def test_spectral_normalization_adds_no_parameters_and_covers_every_convolution() -> None:
    model = small()
    before = sum(parameter.numel() for parameter in model.parameters())
    names = apply_spectral_norm(model, bound=6.0)
    assert sum(parameter.numel() for parameter in model.parameters()) == before
    assert (
        sum("shortcut" in name for name in names) == 2
    )  # a widen factor of 1 keeps the first width
    assert len([name for name, _ in spectral_norms(model)]) == len(names) == 10
    sizes = {name: tuple(norm.right.shape[-2:]) for name, norm in spectral_norms(model)}
    assert sizes["conv1"] == sizes["blocks.1.conv1"] == (16, 16)
    assert sizes["blocks.1.conv2"] == sizes["blocks.2.conv1"] == (8, 8)


def test_without_classifier_it_gives_the_features_that_the_classifier_sees() -> None:
    model = small(num_classes=4).eval()
    x = torch.randn(2, 3, 16, 16)
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    assert torch.equal(model.get_classifier()(features), model(x))
    model.reset_classifier(0)
    assert torch.equal(model(x), features)
    assert features.shape == (2, model.num_features)


def test_a_block_is_the_pre_activation_block_of_the_definition() -> None:
    model = small().eval()
    block = model.blocks[1]
    x = torch.randn(2, 16, 16, 16)
    activated = block.bn1(x).relu()
    expected = block.shortcut(activated) + block.conv2(block.bn2(block.conv1(activated)).relu())
    assert torch.allclose(block(x), expected)
    identity = model.blocks[0]
    expected = x + identity.conv2(identity.bn2(identity.conv1(identity.bn1(x).relu())).relu())
    assert torch.allclose(identity(x), expected)


def test_a_raw_shortcut_reads_what_comes_before_the_norm() -> None:
    block = small(raw_shortcut=True).eval().blocks[1]
    x = torch.randn(2, 16, 16, 16)
    branch = block.conv2(block.bn2(block.conv1(block.bn1(x).relu())).relu())
    assert torch.allclose(block(x), block.shortcut(x) + branch)


def test_whole_filters_are_dropped_before_every_convolution_but_the_first() -> None:
    torch.manual_seed(0)
    model = small(filter_drop_rate=0.5).train()
    seen = {}

    def keep(name: str):
        def look(_: nn.Module, args: tuple) -> None:
            seen[name] = args[0].detach()

        return look

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and "shortcut" not in name:
            module.register_forward_pre_hook(keep(name))
    model(torch.rand(8, 3, 16, 16) + 0.5)
    assert len(seen) == 7
    for name, x in seen.items():
        is_dropped = (x == 0).all((2, 3))
        # A filter is whole or gone; a rectifier alone seldom clears one for a whole image.
        assert is_dropped.float().mean().item() == (
            0 if name == "conv1" else pytest.approx(0.5, abs=0.15)
        )


def test_a_network_that_drops_no_filters_draws_what_it_drew_before_it_could() -> None:
    torch.manual_seed(0)
    model = small(drop_rate=0.3).train()
    x = torch.randn(2, 3, 16, 16)
    torch.manual_seed(1)
    model(x)
    drawn = torch.get_rng_state()
    for module in model.modules():
        if hasattr(module, "filter_drop"):
            del module.filter_drop
            module.filter_drop = lambda y: y
    torch.manual_seed(1)
    model(x)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"depth": 27}, r"depth \(27\)"), ({"widen_factor": 0}, "widen_factor"), ({"drop_rate": 1.0}, "drop_rate"),
     ({"filter_drop_rate": -0.1}, r"filter_drop_rate \(-0.1\)")],
)  # fmt: skip
def test_wrong_settings_are_named(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**wrong)
