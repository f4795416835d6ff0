"""What every registered attention must do. A new one is found here by its name."""

import pytest
import torch

from lrformer.attention import ATTENTIONS, MultiheadSelfAttention, attention_maps, use_backend
from tests.attention.inputs import tokens
from tests.tolerance import TOLERANCE, assert_close

NAMES = list(ATTENTIONS)


def build(name: str, **settings: bool) -> MultiheadSelfAttention:
    return ATTENTIONS[name](**settings).build(24, 3).double()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_backends_agree(name, qkv_bias):
    layer = build(name, qkv_bias=qkv_bias)
    x = tokens("offset", 2, 17, 24)
    with use_backend(layer, "reference"):
        expected = layer(x)
    assert layer.backend == "auto"
    assert_close(layer(x), expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", NAMES)
def test_a_padded_sample_gives_what_it_gives_alone(name):
    layer = build(name)
    x = tokens("gauss", 2, 9, 24)
    mask = torch.tensor([[False] * 9, [False] * 5 + [True] * 4])
    together = layer(x, key_padding_mask=mask)
    assert_close(together[0], layer(x[:1])[0], 1e-12)
    assert_close(together[1, :5], layer(x[1:, :5])[0], 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_attention_map_is_what_the_output_is_averaged_with(name):
    layer = build(name)
    x = tokens("gauss", 2, 9, 24)
    mask = torch.tensor([[False] * 9, [False] * 5 + [True] * 4])
    weights = layer.attention_map(x, key_padding_mask=mask)
    assert_close(weights.sum(-1), torch.ones(2, 3, 9), 1e-12)
    assert (weights[1, :, :, 5:] == 0).all()
    _, _, v = layer.project(x, mask)
    if name == "scsa":
        v = v / (v.square().sum(-1, keepdim=True) + 1e-8).sqrt()
    expected = layer.proj((weights @ v).transpose(1, 2).flatten(2))
    assert_close(layer(x, key_padding_mask=mask)[:, :5], expected[:, :5], 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_maps_of_a_model_are_found_by_layer_name(name):
    model = torch.nn.Sequential(build(name), build(name))
    x = tokens("gauss", 1, 5, 24)
    maps = attention_maps(model, x)
    assert list(maps) == ["0", "1"]
    assert torch.equal(maps["0"], model[0].attention_map(x))
    assert torch.equal(maps["1"], model[1].attention_map(model[0](x)))
    assert not model[0]._forward_pre_hooks


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name):
    layer = ATTENTIONS[name](qkv_bias=True).build(24, 3).double()
    layer(tokens("gauss", 2, 7, 24)).square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", NAMES)
def test_the_projection_layout_is_q_then_k_then_v(name):
    layer = build(name)
    x = tokens("gauss", 1, 5, 24)
    q, k, v = layer.project(x)
    rows = layer.qkv(x)
    assert layer.qkv.out_features == (48 if layer.tie_qk else 72)
    assert torch.equal(q.transpose(1, 2).flatten(2), rows[..., :24])
    if not layer.tie_qk:
        assert torch.equal(k.transpose(1, 2).flatten(2), rows[..., 24:48])
    if name != "l2_provable":
        assert torch.equal(v.transpose(1, 2).flatten(2), rows[..., -24:])


@pytest.mark.parametrize("name", NAMES)
def test_dropout_acts_in_training_only(name):
    layer = ATTENTIONS[name]().build(24, 3, attn_drop=0.5, proj_drop=0.5).double()
    x = tokens("gauss", 1, 9, 24)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("name", NAMES)
def test_the_module_is_timms_attn_layer(name):
    from timm.models.vision_transformer import VisionTransformer

    module = type(build(name))
    model = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, attn_layer=module
    )
    assert isinstance(model.blocks[0].attn, module)
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    assert model.blocks[0].attn.qkv.weight.grad is not None
    assert model.blocks[0].attn.qkv.bias is not None
