"""Of models that others wrote only what was read is bounded; a part more, and the bound is infinite."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from lrformer import bounds, convert
from tests.evaluation.test_bound_types import subclass
from tests.interop.zoo import TINY_TRANSFORMERS

TINY = {"depth": 1, "embed_dim": 24, "num_heads": 3, "img_size": 32, "num_classes": 3}


def timm_model(name: str = "vit_tiny_patch16_224", **settings) -> nn.Module:
    """Return a converted model of timm with one small block."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    return convert(timm.create_model(name, **{**TINY, **settings}), tie_qk=True).double().eval()


@pytest.mark.parametrize(
    "settings",
    [
        {"embed_norm_layer": partial(nn.LayerNorm, eps=1e-6)},
        {"pre_norm": True},
        {"name": "deit_tiny_distilled_patch16_224"},
        {"mlp_layer": "GluMlp"},
        {"name": "vit_tiny_r_s16_p8_224"},
    ],
    ids=[
        "norm of the embedding",
        "norm before the blocks",
        "second head",
        "gate in the MLP",
        "convolutions before the patches",
    ],
)
def test_a_part_that_is_not_read_makes_the_bound_infinite(settings):
    if settings.get("mlp_layer") == "GluMlp":
        settings = {"mlp_layer": pytest.importorskip("timm.layers").GluMlp}
    assert math.isfinite(bounds(timm_model()).chain.bound.value)
    assert bounds(timm_model(**settings)).chain.bound.value == math.inf


@pytest.mark.parametrize("setting", ["qk_norm", "scale_attn_norm", "scale_mlp_norm"])
def test_a_norm_inside_an_attention_or_an_mlp_makes_the_bound_infinite(setting):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    plain, normed = (
        timm.create_model("vit_tiny_patch16_224", **TINY, **more).eval()
        for more in ({}, {setting: True})
    )
    assert math.isfinite(bounds(plain).chain.log10)
    assert bounds(normed).chain.log10 == math.inf


def test_a_norm_before_the_pooling_and_one_after_it_are_not_read_together():
    model = timm_model(global_pool="avg", class_token=False)
    assert isinstance(model.fc_norm, nn.LayerNorm)
    assert math.isfinite(bounds(model).chain.log10)
    model.norm = nn.LayerNorm(24).double()
    assert bounds(model).chain.log10 == math.inf


def test_what_drops_patches_in_training_alone_is_no_part_that_is_not_read():
    plain, dropped = timm_model(), timm_model(patch_drop_rate=0.5)
    assert type(dropped.patch_drop).__name__ == "PatchDropout"
    dropped.load_state_dict(plain.state_dict())
    assert bounds(dropped).chain.log10 == bounds(plain).chain.log10 < math.inf


def test_a_second_head_of_transformers_is_not_left_out():
    transformers = pytest.importorskip("transformers")
    config = transformers.DeiTConfig(num_labels=3, **TINY_TRANSFORMERS)
    torch.manual_seed(0)
    one, two = (
        convert(kind(config).double().eval(), tie_qk=True)
        for kind in (
            transformers.DeiTForImageClassification,
            transformers.DeiTForImageClassificationWithTeacher,
        )
    )
    assert math.isfinite(bounds(one).chain.bound.value)
    report = bounds(two)
    assert report.chain.bound.value == math.inf
    assert "DeiTForImageClassificationWithTeacher" in str(report.rows[0].frobenius.reason)


def test_a_model_for_any_size_is_bounded_for_the_tokens_of_its_inputs():
    model = timm_model(dynamic_img_size=True)
    same_size = timm_model(img_size=96)
    same_size.blocks.load_state_dict(model.blocks.state_dict())
    x = torch.randn(2, 3, 96, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    built, seen, expected = bounds(model), bounds(model, x, num_steps=1), bounds(same_size)
    assert (built.num_tokens, seen.num_tokens) == (5, expected.num_tokens)
    rows = {row.name: row.frobenius.value for row in expected.rows}
    for row in seen.rows:
        if row.name.endswith("attn"):
            assert row.frobenius.value == pytest.approx(rows[row.name], rel=1e-6)
    fixed = copy.deepcopy(model)
    fixed.set_input_size(img_size=96)
    pooled = timm_model(dynamic_img_size=True, global_pool="avg", class_token=False)
    whole = copy.deepcopy(pooled)
    whole.set_input_size(img_size=96)
    mean, expected_mean = (bounds(m, x, num_steps=1).chain.bound.value for m in (pooled, whole))
    assert mean == pytest.approx(expected_mean, rel=1e-6)
    local, expected = (bounds(m, x, num_steps=1, radius=1e-3).local for m in (model, fixed))
    assert local.constants == pytest.approx(expected.constants, rel=1e-3)


def test_a_gate_behind_the_attention_and_a_block_of_another_kind_are_not_overlooked():
    timm = pytest.importorskip("timm")
    from timm.models.vision_transformer import ParallelScalingBlock

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **{**TINY, "depth": 2}).double().eval()
    assert math.isfinite(bounds(model).chain.log10)
    gated, mixed = copy.deepcopy(model), copy.deepcopy(model)
    gated.blocks[1].attn.gate = nn.Linear(24, 24)
    mixed.blocks[1] = ParallelScalingBlock(24, 3)
    for other in (gated, mixed):
        assert bounds(other).chain.log10 == math.inf


def test_a_model_without_blocks_is_not_read():
    assert (
        bounds(
            pytest.importorskip("timm").create_model("vit_tiny_patch16_224", **{**TINY, "depth": 0})
        ).chain.log10
        == math.inf
    )


@pytest.mark.parametrize(
    "name", ["", "patch_embed", "patch_embed.proj", "blocks.0", "blocks.0.ls1", "blocks.0.mlp"]
)
def test_a_subclass_of_a_part_of_timm_may_do_anything(name):
    model = timm_model(init_values=1e-2)
    assert math.isfinite(bounds(model).chain.log10)
    subclass(model.get_submodule(name))
    assert bounds(model).chain.log10 == math.inf


@pytest.mark.parametrize(
    "name",
    [
        "",
        "vit",
        "vit.embeddings",
        "vit.embeddings.patch_embeddings",
        "vit.layers.0",
        "vit.layers.0.attention",
        "vit.layers.0.mlp",
        "vit.layers.0.mlp.activation_fn",
        "vit.layernorm",
        "classifier",
    ],
)
def test_a_subclass_of_a_part_of_transformers_may_do_anything(name):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**TINY_TRANSFORMERS)
    model = convert(transformers.ViTForImageClassification(config), tie_qk=True)
    assert math.isfinite(bounds(model).chain.log10)
    subclass(model.get_submodule(name))
    assert bounds(model).chain.log10 == math.inf


@pytest.mark.parametrize("kind", ["ViT", "DeiT"])
def test_the_output_of_a_model_without_a_head_is_its_class_token(kind):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(**TINY_TRANSFORMERS, layer_norm_eps=1.0)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False).double().eval()
    model = convert(model, tie_qk=True, alpha=1.0)
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    report = bounds(model, x, num_steps=20, radius=1e-3)
    with torch.no_grad():
        top = model(x).last_hidden_state[:, 0].topk(2).values
    assert report.margins == pytest.approx((top[:, 0] - top[:, 1]).tolist())
    assert max(report.measured) <= max(report.local.constants) <= report.chain.bound.value
    for radius, local in zip(report.radii, report.local.radii, strict=True):
        assert radius > 0
        assert 0 < local <= 1e-3


def test_a_pooler_beside_the_tokens_does_not_change_the_constant_of_the_class_token():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**TINY_TRANSFORMERS, layer_norm_eps=1.0)
    model = transformers.ViTModel(config, add_pooling_layer=True).eval()
    model = convert(model, tie_qk=True, alpha=1.0)
    assert isinstance(model.pooler, nn.Module)
    expected = bounds(model).chain.log10
    model.pooler = None
    assert expected == bounds(model).chain.log10 < math.inf


def test_tokens_that_nobody_pools_have_neither_margins_nor_radii():
    model = timm_model(global_pool="", class_token=False, num_classes=3)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    report = bounds(model, x, num_steps=1, radius=1e-3)
    assert report.margins == report.radii == report.local.radii == ()
    assert "not logits of two classes or more" in str(report)
