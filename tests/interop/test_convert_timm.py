"""Conversion of timm's vision transformers."""

import copy

import pytest
import torch
from torch import nn

from lrformer.attention import ATTENTIONS, LRSA, LRSAConfig, MultiheadSelfAttention, attention_maps
from lrformer.core import ConfigError, UnsupportedModelError
from lrformer.interop import conversion_of, conversion_report, convert
from tests.interop.zoo import TIMM_MODELS, pictures, split_qkv_model, timm_model
from tests.tolerance import TOLERANCE, assert_close


@pytest.mark.parametrize("name", TIMM_MODELS)
def test_dot_product_in_place_of_dot_product_changes_no_output(name: str) -> None:
    model = timm_model(name)
    converted = convert(model, "dot_product")
    layers = [m for m in converted.modules() if isinstance(m, MultiheadSelfAttention)]
    assert len(layers) == 2
    assert_close(converted(pictures()), model(pictures()), TOLERANCE[torch.float64])


@pytest.mark.parametrize("separate", [False, True])
def test_split_projections_are_read_too(separate: bool) -> None:
    model = split_qkv_model(qkv_fused=separate)
    converted = convert(model, "dot_product")
    x = pictures(size=32)
    assert_close(converted(x), model(x), TOLERANCE[torch.float64])
    assert convert(model, "lrsa")(x).isfinite().all()


@pytest.mark.parametrize("name", TIMM_MODELS)
def test_everything_but_queries_and_keys_is_kept_to_the_bit(name: str) -> None:
    model = timm_model(name)
    before = copy.deepcopy(model.state_dict())
    for tie_qk in (False, True):
        after = convert(model, "lrsa", tie_qk=tie_qk, calibration=pictures()).state_dict()
        for key, value in before.items():
            if "attn.qkv" in key:
                width = value.shape[0] // 3
                assert torch.equal(after[key][-width:], value[-width:]), key
            else:
                assert torch.equal(after[key], value), key
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), f"the caller's {key} was changed"


@pytest.mark.parametrize("attention", list(ATTENTIONS))
def test_a_converted_model_trains_and_counts_no_stranger(attention: str) -> None:
    from timm.optim import create_optimizer_v2

    model = timm_model("vit_tiny_patch16_224")
    converted = convert(model, attention, calibration=pictures()).train()
    assert type(converted) is type(model)
    optimizer = create_optimizer_v2(converted, opt="adamw", lr=1e-4, weight_decay=0.1)
    labels = torch.tensor([0, 1, 2])
    before = nn.functional.cross_entropy(converted(pictures()), labels)
    before.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in converted.parameters()), (
        "a parameter got no gradient"
    )
    optimizer.step()
    assert nn.functional.cross_entropy(converted(pictures()), labels) < before


def test_small_keys_bring_the_original_back_query_bias_included() -> None:
    # One sample, so that its temperature is met exactly; the norms of the keys fade with their scale.
    model = timm_model("vit_tiny_patch16_224")
    moved = [
        conversion_report(
            convert(model, "lrsa", key_scale=2.0**-power, calibration=pictures(1))
        ).outputs
        for power in (0, 2, 5, 9)
    ]
    assert moved[0] > 0.1
    assert sorted(moved, reverse=True) == moved
    assert moved[-1] < 1e-4


def test_the_key_bias_is_dropped_because_it_only_cancels_in_dot_products() -> None:
    model = timm_model("vit_tiny_patch16_224")
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        for block in shifted.blocks:
            block.attn.qkv.bias[192:384] += 5.0
    assert_close(shifted(pictures()), model(pictures()), 1e-9)
    for attention in ("lrsa", "l2", "scsa"):
        assert_close(
            convert(shifted, attention, calibration=pictures())(pictures()),
            convert(model, attention, calibration=pictures())(pictures()),
            1e-4,  # bisection sees entropies that differ in the last digits
        )


def test_the_report_says_how_far_each_layer_and_the_outputs_moved() -> None:
    model, x = timm_model("vit_tiny_patch16_224"), pictures()
    converted = convert(model, "lrsa", tie_qk=True, calibration=x)
    report = conversion_report(converted)
    assert [layer.name for layer in report.layers] == ["blocks.0.attn", "blocks.1.attn"]

    with torch.no_grad():
        moved = (converted(x) - model(x)).norm() / model(x).norm()
        old = model.blocks[0](model.norm_pre(model._pos_embed(model.patch_embed(x))))
        new = converted.blocks[0](model.norm_pre(model._pos_embed(model.patch_embed(x))))
    assert report.outputs == pytest.approx(moved.item(), rel=1e-9)
    assert report.layers[0].tokens == pytest.approx(((new - old).norm() / old.norm()).item())
    assert report.layers[0].attention is not None
    assert report.layers[0].attention > 0.01
    text = str(report)
    assert "blocks.1.attn" in text
    assert f"{report.outputs:.1%}" in text

    assert conversion_report(convert(model, "lrsa")).outputs is None
    with pytest.raises(UnsupportedModelError, match="was not converted"):
        conversion_report(model)


def test_the_report_says_where_untied_lrsa_has_no_lipschitz_constant() -> None:
    model = timm_model("vit_tiny_patch16_224", depth=1)
    for settings, is_without in (
        ({}, True),
        ({"calibration": pictures()}, True),
        ({"normalizer": "m"}, True),
        ({"normalizer": "symmetric"}, False),
        ({"tie_qk": True}, False),
        ({"attention": "scsa"}, False),
    ):
        converted = convert(model, **{"attention": "lrsa", **settings})
        text = str(conversion_report(converted))
        assert ("has no Lipschitz constant" in text) == is_without, settings


def test_a_number_for_alpha_is_taken_and_none_leaves_the_config() -> None:
    model = timm_model("vit_tiny_patch16_224")
    for settings, expected in (
        ({"attention": "lrsa", "alpha": 25}, 25.0),
        ({"attention": LRSAConfig(alpha=7.0), "alpha": None}, 7.0),
    ):
        for layer in convert(model, **settings).blocks:
            assert isinstance(layer.attn, LRSA)
            assert torch.equal(layer.attn.alpha, torch.full_like(layer.attn.alpha, expected))
    assert convert(model, LRSAConfig(tie_qk=True)).blocks[0].attn.tie_qk
    assert not convert(model, "lrsa").blocks[0].attn.tie_qk
    learned = convert(model, LRSAConfig(learnable_alpha=True, normalizer="symmetric"))
    assert learned.blocks[0].attn.normalizer == "symmetric"


def test_its_state_dict_loads_into_a_model_converted_the_same_way() -> None:
    model = timm_model("deit3_small_patch16_224")
    first = convert(model, "lrsa", calibration=pictures())
    second = convert(timm_model("deit3_small_patch16_224"), "lrsa")
    assert not torch.equal(second(pictures()), first(pictures()))
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(pictures()), first(pictures()))


def test_mode_device_dtype_freezing_and_the_global_generator_are_left_alone() -> None:
    model = timm_model("vit_tiny_patch16_224").to(torch.bfloat16).train()
    model.blocks[0].attn.qkv.weight.requires_grad_(False)
    state = torch.get_rng_state()
    converted = convert(model, "lrsa", calibration=pictures().bfloat16())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in [*model.modules(), *converted.modules()])
    assert {p.dtype for p in converted.parameters()} == {torch.bfloat16}
    assert not converted.blocks[0].attn.qkv.weight.requires_grad
    assert converted.blocks[0].attn.qkv.bias.requires_grad
    assert converted.blocks[1].attn.qkv.weight.requires_grad


def test_in_place_changes_the_model_itself() -> None:
    model = timm_model("vit_tiny_patch16_224")
    assert convert(model, "lrsa", inplace=True) is model
    assert isinstance(model.blocks[0].attn, LRSA)
    with pytest.raises(UnsupportedModelError, match="converted already"):
        convert(model, "l2")


@pytest.mark.unhooked
def test_it_compiles_without_graph_breaks_and_shows_its_maps() -> None:
    converted = convert(timm_model("vit_tiny_patch16_224"), "lrsa")
    torch.compiler.reset()
    compiled = torch.compile(converted, fullgraph=True, backend="eager")
    assert_close(compiled(pictures()), converted(pictures()), TOLERANCE[torch.float64])
    maps = attention_maps(converted, pictures())
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn"]
    assert_close(maps["blocks.0.attn"].sum(-1), torch.ones(3, 3, 17), 1e-12)


def refused_models() -> list[tuple[str, dict, str]]:
    return [
        ("swin_tiny_patch4_window7_224", {"img_size": 56, "window_size": 7}, "windowed"),
        ("resnet18", {}, "not a plain vision transformer"),
        ("vit_tiny_patch16_224", {"depth": 1, "qk_norm": True}, "qk_norm"),
        ("vit_tiny_patch16_224", {"depth": 1, "scale_attn_norm": True}, "norm or a gate"),
        ("eva02_tiny_patch14_224", {"depth": 1}, "rotary"),
    ]


@pytest.mark.parametrize(("name", "kwargs", "reason"), refused_models())
def test_other_models_are_refused_by_name_and_left_whole(
    name: str, kwargs: dict, reason: str
) -> None:
    import timm

    model = timm.create_model(name, pretrained=False, **kwargs)
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        convert(model, "lrsa", inplace=True)
    assert type(model).__name__ in str(caught.value)
    assert "Supported: timm's VisionTransformer family" in str(caught.value)
    assert [type(module) for module in model.modules()] == kinds
    assert conversion_of(model) is None


def test_blocks_without_an_attention_of_their_own_are_refused() -> None:
    from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer

    model = VisionTransformer(
        img_size=32, embed_dim=48, depth=1, num_heads=4, block_fn=ParallelScalingBlock
    )
    with pytest.raises(UnsupportedModelError, match="ParallelScalingBlock"):
        convert(model)
    with pytest.raises(UnsupportedModelError, match="neither a timm nor a transformers"):
        convert(nn.Sequential(model))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "lsra"}, "Did you mean 'lrsa'"),
        ({"attention": nn.Identity()}, r"attention \(Identity"),
        ({"alpha": "mach"}, "'match'"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": True}, "alpha"),
        ({"attention": "l2", "alpha": 3.0}, "setting of lrsa"),
        ({"attention": "l2", "tie_qk": False}, "setting of lrsa"),
        ({"attention": "dot_product", "tie_qk": True}, "setting of lrsa"),
        ({"attention": "scsa", "normalizer": "m"}, "setting of lrsa"),
        ({"normalizer": "maximum"}, "normalizer"),
        ({"normalizer": "m", "length_free": True}, "length_free"),
        ({"key_scale": 0.0}, "key_scale"),
        ({"num_tokens": 0}, "num_tokens"),
    ],
)
def test_wrong_settings_raise_before_anything_happens(settings: dict, message: str) -> None:
    model = timm_model("vit_tiny_patch16_224", depth=1)
    with pytest.raises(ConfigError, match=message):
        convert(model, **settings, inplace=True)
    assert not isinstance(model.blocks[0].attn, MultiheadSelfAttention)


@pytest.mark.parametrize("batch", [torch.randn(1, 3, 20, 20), [1, 2]], ids=["size", "numbers"])
def test_a_calibration_batch_that_the_model_cannot_take_is_said_in_words(batch) -> None:
    with pytest.raises(ConfigError, match="cannot take the calibration batch"):
        convert(timm_model("vit_tiny_patch16_224", depth=1), calibration=batch)


def test_a_calibration_batch_of_another_kind_raises() -> None:
    with pytest.raises(ConfigError, match="calibration is a str"):
        convert(timm_model("vit_tiny_patch16_224", depth=1), calibration="images")


def test_a_causal_call_is_refused_by_the_converted_attention() -> None:
    converted = convert(timm_model("vit_tiny_patch16_224", depth=1), "lrsa")
    with pytest.raises(ConfigError, match="is_causal"):
        converted(pictures(), is_causal=True)


def test_a_calibration_batch_without_numbers_is_refused() -> None:
    model = timm_model(next(iter(TIMM_MODELS)))
    with pytest.raises(ConfigError, match="not finite"):
        convert(model, "lrsa", calibration=pictures() * float("nan"))
