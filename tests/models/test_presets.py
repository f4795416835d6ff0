"""What every preset must do, with every attention it can be built with."""

import pytest
import torch
from torch import Tensor, nn

from lrformer.attention import ATTENTIONS, LRSA, LRSAConfig
from lrformer.core import ConfigError, from_record, to_record
from lrformer.models import PRESETS, ViTConfig, create_model, list_models
from tests.tolerance import assert_close

VIT_PRESETS = [name for name in PRESETS if isinstance(PRESETS[name], ViTConfig)]


def small(name: str, **overrides: object) -> nn.Module:
    """Return the preset at its own structure, with two layers where it has more: for time."""
    config = PRESETS[name]
    assert isinstance(config, ViTConfig)
    return create_model(name, **{"depth": min(config.depth, 2), **overrides}).eval()


def inputs_for(model: nn.Module, batch: int = 2) -> Tensor:
    tokenizer = model.tokenizer
    if hasattr(tokenizer, "num_inputs"):
        return torch.randn(batch, tokenizer.num_inputs)
    return torch.randn(batch, tokenizer.in_chans, tokenizer.img_size, tokenizer.img_size)


@pytest.fixture(autouse=True)
def _forget_compiled_graphs() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("lrformer_small_patch16_224", 19.9),
        ("lrformer_small_depth6_patch16_224", 10.1),
        ("lrformer_tiny_patch16_224", 5.1),
    ],
)
def test_the_paper_sizes_have_the_papers_parameters(name, millions):
    with torch.device("meta"):
        model = create_model(name, num_classes=10)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


def test_untied_queries_and_keys_have_the_parameters_of_timms_vit_small():
    import timm

    with torch.device("meta"):
        ours = create_model("lrformer_small_patch16_224", attention="dot_product", qkv_bias=True)
        theirs = timm.create_model("vit_small_patch16_224", num_classes=10)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_the_plain_preset_equals_timms_vision_transformer_with_the_same_weights():
    from timm.models.vision_transformer import VisionTransformer

    theirs = VisionTransformer(
        img_size=32, patch_size=4, embed_dim=192, depth=2, num_heads=3, num_classes=10
    )
    ours = small("lrformer_tiny_patch4_32", attention="dot_product", qkv_bias=True)
    weights = {
        name.replace("patch_embed.", "tokenizer."): tensor
        for name, tensor in theirs.state_dict().items()
    }
    ours.load_state_dict(weights)
    x = inputs_for(ours)
    assert_close(ours(x), theirs.eval()(x), 1e-5)
    assert_close(ours.forward_features(x), theirs.forward_features(x), 1e-5)


@pytest.mark.unhooked
@pytest.mark.parametrize("name", VIT_PRESETS)
def test_a_preset_is_one_graph_exports_and_gives_each_sample_its_own_output(name):
    model = small(name)
    x = inputs_for(model, batch=3)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    assert_close(compiled(x), expected, 1e-5)
    exported = torch.export.export(model, (x,)).module()
    assert_close(exported(x), expected, 1e-5)
    alone = torch.cat([model(sample.unsqueeze(0)) for sample in x])
    assert_close(alone, expected, 1e-5)


@pytest.mark.parametrize("name", VIT_PRESETS)
def test_weights_and_config_make_the_same_model_again(name):
    model = small(name, alpha=37.0)
    config = from_record(ViTConfig, to_record(model.config))
    assert config == model.config
    twin = config.build().eval()
    twin.load_state_dict(model.state_dict())
    x = inputs_for(model)
    assert torch.equal(twin(x), model(x))


@pytest.mark.parametrize("attention", list(ATTENTIONS))
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("pool", ["token", "avg", "seq"])
def test_gradients_reach_every_parameter(attention, norm, pool):
    model = small(
        "lrformer_digits", attention=attention, norm=norm, global_pool=pool, drop_path_rate=0.0
    ).train()
    model(inputs_for(model, 4)).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.unhooked
@pytest.mark.parametrize("attention", ["dot_product", "l2", "scsa", "lrsa"])
def test_inductor_gives_what_eager_gives(attention):
    model = small("lrformer_digits", attention=attention, depth=1)
    x = inputs_for(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    assert_close(compiled(x), model(x), 1e-4)
    eager_grad = torch.autograd.grad(model(x).square().sum(), model.pos_embed)[0]
    compiled_grad = torch.autograd.grad(compiled(x).square().sum(), model.pos_embed)[0]
    assert_close(compiled_grad, eager_grad, 1e-3)


def test_overrides_reach_the_attention_the_tokenizer_and_the_model():
    model = create_model(
        "lrformer_tiny_patch4_32",
        num_classes=7,
        alpha=500.0,
        tie_qk=False,
        normalizer="floor",
        img_size=16,
        depth=1,
    )
    layer = model.blocks[0].attn
    assert isinstance(layer, LRSA)
    assert layer.alpha.tolist() == [500.0] * 3
    assert (layer.tie_qk, layer.normalizer) == (False, "floor")
    assert model(torch.randn(1, 3, 16, 16)).shape == (1, 7)
    assert create_model("lrformer_digits", attention="scsa", tau=3.0).blocks[0].attn.tau == 3.0


def test_no_classes_gives_the_features_that_the_classifier_reads():
    model = small("lrformer_digits")
    x = inputs_for(model)
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    assert torch.equal(model.head(features), model(x))
    model.reset_classifier(0)
    assert torch.equal(model(x), features)
    assert features.shape == (2, model.num_features)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "lrformer_digit"}, "Did you mean 'lrformer_digits'"),
        ({"alfa": 1.0}, "Did you mean 'alpha'"),
        ({"attention": "lrsa_n"}, "Did you mean 'lrsa_m'"),
        ({"num_heads": 5}, r"num_heads \(5\) must divide dim \(64\)"),
        ({"img_size": 9}, r"img_size \(9\) must be a multiple of patch_size \(2\)"),
        ({"norm": "middle"}, "must be 'pre' or 'post'"),
        ({"global_pool": "max"}, "must be one of token, avg, seq"),
        ({"drop_path_rate": 1.0}, "drop_path_rate"),
        ({"num_classes": -1}, "num_classes"),
        ({"depth": 0}, "depth"),
        ({"depth": "six"}, r"depth \('six'\) must be a whole number"),
        ({"embed_dim": 8.5}, r"embed_dim \(8.5\) must be a whole number"),
        ({"depth": True}, r"depth \(True\) must be a whole number"),
        ({"alpha": "high"}, r"alpha \('high'\) must be a number"),
        ({"tie_qk": 1}, r"tie_qk \(1\) must be true or false"),
        (
            {"name": "lrformer_hybrid_32", "widths": 8},
            r"widths \(8\) must be a list of whole numbers",
        ),
        ({"name": "lrformer_hybrid_32", "widths": [8.5, 8]}, "must be a list of whole numbers"),
        ({"attention": "dot_product", "alpha": 3.0}, "no setting 'alpha'"),
    ],
)
def test_settings_that_cannot_work_raise_with_a_way_out(arguments, message):
    with pytest.raises(ConfigError, match=message):
        create_model(**{"name": "lrformer_digits", **arguments})


def test_a_picture_of_the_wrong_size_is_refused():
    model = small("lrformer_digits")
    with pytest.raises(ConfigError, match=r"must be \(batch, 1, 8, 8\)"):
        model(torch.randn(2, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"must be \(batch, 2\)"):
        small("lrformer_two_moons")(torch.randn(4, 3))


def test_every_name_is_listed_once():
    assert len(set(list_models())) == len(list_models())
    assert set(VIT_PRESETS) <= set(list_models())


@pytest.mark.parametrize("wrong", [LRSA, LRSAConfig, 5, None])
def test_what_is_no_setting_of_an_attention_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=r"attention \(.*\) must be a name \(dot_product"):
        create_model("lrformer_digits", attention=wrong)
