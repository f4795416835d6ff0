"""What is read is read by its exact class: a subclass of any part may compute something else."""

import math

import pytest
import timm.layers
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from lrformer.attention import LRSA, DotProductAttention
from lrformer.evaluation.bound_ends import embedding_constants, head_constant
from lrformer.evaluation.bound_modules import (
    attention_constants,
    linear_constants,
    mlp_constants,
    norm_constants,
    norm_output_radius,
)
from lrformer.evaluation.bound_types import is_exactly
from lrformer.evaluation.bounds import bounds
from lrformer.heads import RandomFeatureGP
from lrformer.methods import Deterministic
from lrformer.models import (
    ConvTokens,
    PatchTokens,
    ResidualTokens,
    ViTConfig,
    create_model,
)
from lrformer.models.mlp import Mlp
from tests.methods.tiny import small_method


def subclass(module: nn.Module) -> nn.Module:
    """Make `module` one of a subclass of its class, in place."""
    module.__class__ = type("Loud", (type(module),), {})
    return module


def small(**settings) -> nn.Module:
    torch.manual_seed(0)
    tokens = PatchTokens(img_size=4, patch_size=2, in_chans=1)
    defaults = {"embed_dim": 6, "depth": 2, "num_heads": 2, "num_classes": 3, "mlp_ratio": 1.0}
    return ViTConfig(**{"tokens": tokens, "global_pool": "seq"} | defaults | settings).build()


PARTS = (
    *("", "tokenizer", "tokenizer.proj", "pos_drop", "norm", "pool", "pool.score", "head"),
    *("blocks.1", "blocks.1.norm1", "blocks.1.drop_path1", "blocks.1.attn", "blocks.1.attn.qkv"),
    *("blocks.1.attn.proj", "blocks.1.mlp", "blocks.1.mlp.fc1", "blocks.1.mlp.act"),
)


@pytest.mark.parametrize("name", PARTS)
def test_a_subclass_of_any_part_of_our_model_makes_the_bound_infinite(name):
    model = small()
    assert math.isfinite(bounds(model).chain.log10)
    subclass(model.get_submodule(name))
    report = bounds(model)
    assert report.chain.log10 == math.inf
    assert report.chain.bound.reason


def test_a_subclass_that_scales_its_input_is_not_taken_for_the_original():
    class Scaled(type(small())):
        def forward(self, x):
            return super().forward(100 * x)

    model = Scaled(small().config)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 100.0
    report = bounds(model, 1e-3 * torch.randn(2, 1, 4, 4), num_steps=3)
    assert max(report.measured) <= report.chain.bound.value == math.inf
    assert "Scaled" in report.chain.bound.reason
    assert report.radii == (0.0, 0.0)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "tokenizer",
        "tokenizer.proj",
        "blocks.0",
        "blocks.0.attn",
        "blocks.0.mlp",
        "head_drop",
        "head",
    ],
)
def test_a_subclass_of_any_part_of_a_certified_model_takes_its_constant_away(name):
    model = create_model("certified_two_moons", depth=1, embed_dim=8, num_heads=2)
    assert bounds(model).chain.bound.is_finite
    subclass(model.get_submodule(name))
    assert bounds(model).chain.bound.value == math.inf


def test_a_method_of_somebody_and_a_backbone_with_a_head_of_its_own_are_not_read():
    class Louder(Deterministic):
        def forward(self, x):
            return 50 * super().forward(x)

    config = small_method("deterministic").config
    ours, louder = (
        kind(lambda: small(num_classes=0), 3, config) for kind in (Deterministic, Louder)
    )
    assert math.isfinite(bounds(ours).chain.log10)
    assert bounds(louder).chain.log10 == math.inf
    ours.backbone.head = nn.Linear(6, 6)
    assert bounds(ours).chain.log10 == math.inf


def test_a_certified_backbone_with_a_head_of_its_own_before_that_of_a_method_is_not_read():
    def backbone():
        return create_model("certified_two_moons", depth=1, embed_dim=8, num_heads=2, num_classes=0)

    method = small_method("deterministic", backbone)
    assert bounds(method).chain.bound.is_finite
    method.backbone.head = nn.Linear(8, 8)
    assert bounds(method).chain.bound.value == math.inf


@pytest.mark.parametrize("name", ["conv", "bn", "act", "blocks.1", "blocks.1.shortcut", "proj"])
def test_a_subclass_inside_residual_tokens_is_not_read(name):
    embed = ResidualTokens(img_size=4, in_chans=1, widths=(2, 3), depths=(1, 1)).build(2).eval()
    assert embedding_constants(embed).frobenius.is_finite
    subclass(embed.get_submodule(name))
    assert not embedding_constants(embed).frobenius.is_finite


def test_a_part_more_or_a_norm_without_statistics_inside_residual_tokens_is_not_read():
    tokens = ResidualTokens(img_size=4, in_chans=1, widths=(2, 3), depths=(1, 1))
    embed, more = tokens.build(2).eval(), tokens.build(2).eval()
    more.blocks[1].gate = nn.Linear(3, 3)
    assert not embedding_constants(more).frobenius.is_finite
    for name in ("bn", "blocks.0.bn1", "blocks.1.bn2"):
        norm = embed.get_submodule(name)
        kept, norm.running_var = norm.running_var, None
        assert not embedding_constants(embed).frobenius.is_finite
        norm.running_var = kept
    assert embedding_constants(embed).frobenius.is_finite


def test_a_subclass_inside_convolutional_tokens_or_a_process_is_not_read():
    embed = ConvTokens(img_size=4, in_chans=1).build(2)
    subclass(embed.convs[0])
    assert not embedding_constants(embed).frobenius.is_finite
    for name in ("", "random_features", "output"):
        head = RandomFeatureGP(4, 3)
        assert head_constant(head).frobenius.is_finite
        subclass(head.get_submodule(name))
        assert not head_constant(head).frobenius.is_finite


@pytest.mark.parametrize(
    "settings", [{"dilation": 2}, {"padding": 1, "padding_mode": "circular"}, {"stride": 1}]
)
def test_a_convolution_that_reads_a_pixel_twice_is_no_patch_embedding(settings):
    plain = {"stride": 2}
    assert embedding_constants(nn.Conv2d(1, 3, 2, **plain)).frobenius.is_finite
    assert not embedding_constants(nn.Conv2d(1, 3, 2, **plain | settings)).frobenius.is_finite


def test_modules_that_only_look_like_ours_are_not_read():
    alike = nn.Module()
    alike.fc1, alike.act, alike.fc2 = nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)
    assert mlp_constants(Mlp(2, 2)).frobenius.is_finite
    assert not mlp_constants(alike).frobenius.is_finite

    class ReLU(nn.Module):
        def forward(self, x):
            return 50 * x

    mlp = Mlp(2, 2)
    mlp.act = ReLU()
    assert not mlp_constants(mlp).frobenius.is_finite
    wrapper = small()
    wrapper.blocks[0].attn = nn.ModuleDict({"attn": LRSA(6, 2)})
    assert bounds(wrapper).chain.log10 == math.inf


def test_a_compiled_model_has_the_constant_of_the_one_inside():
    model = small()
    method = small_method("deterministic", lambda: small(num_classes=0))
    for one in (model, method):
        expected = bounds(one).chain.log10
        assert math.isfinite(expected)
        assert bounds(torch.compile(one)).chain.log10 == expected
    method.backbone = torch.compile(method.backbone)
    assert bounds(method).chain.log10 == expected


def test_a_parametrized_layer_is_of_the_class_that_was_written():
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    layer, loud = nn.Linear(3, 3), subclass(nn.Linear(3, 3))
    sigma = linear_constants(layer).frobenius.value
    for module in (layer, loud):
        parametrize.register_parametrization(module, "weight", Double())
    assert is_exactly(layer, nn.Linear)
    assert linear_constants(layer).frobenius.value == pytest.approx(2 * sigma)
    assert not linear_constants(loud).frobenius.is_finite
    assert not norm_constants(subclass(nn.Identity())).frobenius.is_finite


def _with_hook(part: nn.Module) -> None:
    part.register_forward_hook(lambda _, args, output: 100 * output)


def _with_pre_hook(part: nn.Module) -> None:
    part.register_forward_pre_hook(lambda _, args: tuple(100 * arg for arg in args))


def _with_forward(part: nn.Module) -> None:
    forward = part.forward
    part.forward = lambda *args, **kwargs: 100 * forward(*args, **kwargs)


@pytest.mark.parametrize("patch", [_with_hook, _with_pre_hook, _with_forward])
@pytest.mark.parametrize("name", ["", "blocks.0", "blocks.0.mlp", "head"])
@pytest.mark.parametrize("certified", [False, True])
def test_what_was_put_into_a_part_after_it_was_built_makes_the_bound_infinite(
    patch, name, certified
):
    model = create_model("certified_digits", depth=1) if certified else small()
    x = torch.randn(2, 1, 8, 8) if certified else torch.randn(2, 1, 4, 4)
    assert math.isfinite(bounds(model).chain.log10)
    patch(model.get_submodule(name))
    report = bounds(model, x, num_steps=2, radius=0.1)
    assert report.chain.log10 == math.inf
    where = f"'{name}'" if name else "the model"
    assert f"{where} has a forward" in report.chain.bound.reason
    assert report.radii == (0.0, 0.0)
    assert report.certificate is None
    assert report.local.constants == (math.inf, math.inf)
    assert report.local.radii == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("", "forward_features"),
        ("", "forward_head"),
        ("blocks.0.attn", "attend"),
        ("head", "_call_impl"),
    ],
)
def test_any_method_that_was_put_into_a_part_makes_the_bound_infinite(name, method):
    model = small()
    part = model.get_submodule(name)
    own = getattr(part, method)
    setattr(part, method, lambda *args, **kwargs: 1e6 * own(*args, **kwargs))
    report = bounds(model)
    assert report.chain.log10 == math.inf
    assert f"has a {method} that was put into it" in report.chain.bound.reason


def test_a_hook_on_every_module_makes_the_bound_infinite():
    model = small()
    hook = nn.modules.module.register_module_forward_hook(lambda _, args, output: 2 * output)
    try:
        report = bounds(model)
    finally:
        hook.remove()
    assert report.chain.log10 == math.inf
    assert "global forward hook" in report.chain.bound.reason
    assert math.isfinite(bounds(model).chain.log10)


def test_a_compiled_part_is_not_taken_for_a_patched_one():
    model = small()
    expected = bounds(model).chain.log10
    model.blocks[0].compile()
    assert bounds(model).chain.log10 == expected


@pytest.mark.parametrize(
    "normalize",
    [
        nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
    ],
)
def test_a_weight_that_is_only_made_in_the_next_forward_pass_has_no_constant(normalize):
    model = small()
    normalize(model.head)
    with torch.no_grad():
        model.head.weight_orig.mul_(50)  # `weight` is still that of the last pass
    report = bounds(model)
    assert report.chain.log10 == math.inf
    assert "torch.nn.utils.parametrizations" in report.chain.bound.reason


def test_a_norm_over_several_tokens_is_none_of_single_tokens():
    for make in (nn.LayerNorm, nn.RMSNorm):
        whole = make((4, 6), eps=1e-2)
        assert not norm_constants(whole).max_token.is_finite
        assert norm_output_radius(whole) is None
        assert norm_output_radius(make(6, eps=1e-2)) is not None


@pytest.mark.parametrize("ours", [True, False])
def test_dot_products_on_another_scale_have_no_constant(ours):
    attention = DotProductAttention(6, 2) if ours else timm.layers.Attention(6, 2)
    assert attention_constants(attention, n=4, radius=1.0).frobenius.is_finite
    attention.scale = 10.0
    assert not attention_constants(attention, n=4, radius=1.0).frobenius.is_finite
