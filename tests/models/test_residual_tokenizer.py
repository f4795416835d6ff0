import pytest
import torch
from torch.nn import functional as F

from lrformer.core import ConfigError
from lrformer.models import ResidualTokens, ViTConfig, create_model
from lrformer.models.presets import PRESETS, override


def small(**settings) -> ResidualTokens:
    return ResidualTokens(**{"img_size": 8, "widths": (4, 6), "depths": (1, 2), **settings})


def test_tokens_are_the_positions_of_the_last_feature_map_row_by_row() -> None:
    embed = small().build(5).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    tokens = embed(x)
    y = F.conv2d(x, embed.conv.weight, padding=1)
    for block in embed.blocks:
        y = block(y)
    y = F.conv2d(embed.bn(y).relu(), embed.proj.weight, embed.proj.bias, stride=2, padding=1)
    assert y.shape == (2, 5, 2, 2)
    assert torch.allclose(tokens, torch.stack([y[:, :, i // 2, i % 2] for i in range(4)], dim=1))


def test_each_stage_halves_the_side_but_the_first_and_so_do_the_tokens() -> None:
    embed = small(img_size=32, widths=(4, 4, 6), depths=(1, 1, 2)).build(5)
    assert embed.grid_size == (4, 4)
    assert embed.num_tokens == 16 == embed(torch.zeros(1, 3, 32, 32)).shape[1]
    assert [block.conv1.stride[0] for block in embed.blocks] == [1, 2, 2, 1]
    embed.set_input_size(9)
    assert embed.num_tokens == embed(torch.zeros(1, 3, 9, 9)).shape[1]


def test_the_preset_reads_other_sizes_and_counts_its_parameters() -> None:
    model = create_model("lrformer_hybrid_32", depth=1, widths=(4, 6), depths=(1, 1))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert model.pos_embed.shape == (1, 64, 384)
    model.set_input_size(48)
    assert model(torch.randn(2, 3, 48, 48)).shape == (2, 10)
    with pytest.raises(ConfigError, match="set_input_size"):
        model(torch.randn(2, 3, 32, 32))
    with torch.device("meta"):
        whole = create_model("lrformer_hybrid_32")
    assert 14e6 < sum(parameter.numel() for parameter in whole.parameters()) < 15e6


def test_residual_convolutions_start_as_in_residual_networks() -> None:
    torch.manual_seed(0)
    model = create_model("lrformer_hybrid_32", depth=1, widths=(32, 64), depths=(1, 1))
    # By the outputs, of which the first convolution and the first of a stage have more than inputs.
    first, second = model.tokenizer.conv, model.tokenizer.blocks[1].conv1
    assert first.weight.std().item() == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.1)
    assert second.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
    proj = model.tokenizer.proj
    assert proj.weight.std().item() == pytest.approx((1 / (9 * 64)) ** 0.5, rel=0.15)
    assert proj.bias.abs().max() == 0


def test_lists_from_a_record_are_taken_as_tuples() -> None:
    changed = override(PRESETS["lrformer_hybrid_32"], {"widths": [8, 16], "depths": [1, 1]})
    assert isinstance(changed, ViTConfig)
    assert changed.tokens == ResidualTokens(widths=(8, 16), depths=(1, 1))
    assert hash(changed.tokens) == hash(ResidualTokens(widths=(8, 16), depths=(1, 1)))


def test_another_number_of_stages_is_given_by_two_settings_together() -> None:
    changed = override(PRESETS["lrformer_hybrid_32"], {"widths": [4, 6, 8], "depths": [1, 1, 2]})
    assert isinstance(changed, ViTConfig)
    assert changed.tokens == ResidualTokens(widths=(4, 6, 8), depths=(1, 1, 2))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"widths": (8,)}, r"widths \(\(8,\)\) and depths \(\(1, 2\)\) must name the same stages"),
        ({"widths": (), "depths": ()}, "at least one"),
        ({"depths": (1, 0)}, "must be at least 1"),
    ],
)
def test_stages_that_do_not_fit_are_refused(settings, match) -> None:
    with pytest.raises(ConfigError, match=match):
        small(**settings)
