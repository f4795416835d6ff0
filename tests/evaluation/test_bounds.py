"""The report is sound: whatever is measured anywhere stays below what it calls a bound."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from lrformer.attention import LRSA
from lrformer.core import ConfigError, NotFiniteError
from lrformer.evaluation.bound_ends import embedding_constants, head_constant
from lrformer.evaluation.bound_measurements import _Prefix
from lrformer.evaluation.bound_modules import attention_constants
from lrformer.evaluation.bounds import bounds
from lrformer.heads import FittedGP, RandomFeatureGP
from lrformer.heads.laplace_gp import RandomFeatureGPConfig
from lrformer.methods import create_method
from lrformer.models import (
    ConvTokens,
    PatchTokens,
    ResidualTokens,
    ViTConfig,
    create_model,
    override,
)
from lrformer.models.certified import CertifiedConfig
from tests.interop.zoo import TINY_TRANSFORMERS


def small_config(**settings):
    defaults = {"embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 4, "mlp_ratio": 2.0}
    tokens = PatchTokens(img_size=4, patch_size=2, in_chans=1)
    overrides = defaults | {"tokens": tokens, "global_pool": "avg"} | settings
    attention = overrides.pop("attention", "lrsa")
    return override(ViTConfig(**overrides), {"attention": attention})


def small(**settings):
    torch.manual_seed(0)
    model = small_config(**settings).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def images(count=3, size=4, channels=1):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, channels, size, size, dtype=torch.float64, generator=generator)


def assert_sound(report):
    assert report.measured
    for row in report.rows:
        if row.measured is not None:
            assert row.measured <= row.frobenius.value * (1 + 1e-9), row.name
    for point in report.depth:
        if point.measured is not None:
            assert math.log10(point.measured) <= point.log10_sound + 1e-9, point.name
    assert max(report.measured) <= report.chain.bound.value


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("attention", ["lrsa", "lrsa_m", "l2_provable", "scsa", "dot_product"])
def test_nothing_measured_passes_a_bound(norm, attention):
    model = small(norm=norm, attention=attention)
    report = bounds(model, images(), num_steps=5)
    assert_sound(report)
    names = {row.name for row in report.rows}
    assert {"embedding", "blocks.0.attn", "blocks.1.mlp", "head"} <= names
    attn = next(row for row in report.rows if row.name == "blocks.0.attn")
    assert attn.measured is not None
    assert attn.entropy is not None
    assert (attn.smallest_ratio is not None) == attention.startswith("lrsa")
    assert (attn.printed is not None) == (attention == "lrsa")


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_product_is_that_of_the_theorem_on_blocks(norm):
    report = bounds(small(norm=norm, depth=1))
    values = {row.name.split(".")[-1]: row for row in report.rows}

    def stages(pick):
        n1, attn, n2, mlp = (pick(values[part]).value for part in ("norm1", "attn", "norm2", "mlp"))
        first, last = pick(values["embedding"]).value, pick(values["head"]).value
        if norm == "pre":
            return [first, 1 + n1 * attn, 1 + n2 * mlp, pick(values["norm"]).value, last]
        return [first, n1 * (1 + attn), n2 * (1 + mlp), last]

    frobenius = stages(lambda row: row.frobenius)
    largest = stages(lambda row: row.max_token)
    products = [
        math.prod(frobenius[:switch]) * math.prod(largest[switch:])
        for switch in range(len(largest) - 1)
    ]
    products.append(math.prod(frobenius) / math.sqrt(report.num_tokens))
    assert report.chain.bound.value == pytest.approx(min(products), rel=1e-6)


def test_layer_norm_makes_the_product_vacuous_and_the_report_says_so():
    report = bounds(small())
    assert report.is_vacuous
    assert "vacuous" in report.verdict()
    assert report.measured == ()
    first = next(row for row in report.rows if row.name == "blocks.0.norm1")
    assert 100 < first.frobenius.value < first.printed.value


def test_untied_lrsa_and_unbounded_dot_products_have_no_constant():
    untied = bounds(small(attention="lrsa", depth=1))
    assert untied.chain.bound.is_finite
    model = small(attention="dot_product", norm="post")
    report = bounds(model, images(), num_steps=2)
    assert report.chain.bound.value == math.inf
    assert "blocks.0.attn" in report.verdict()
    assert set(report.radii) == {0.0}


def test_an_untied_model_reports_infinity():
    from lrformer.attention import LRSAConfig

    tokens = PatchTokens(img_size=4, patch_size=2, in_chans=1)
    config = ViTConfig(
        tokens=tokens,
        attention=LRSAConfig(tie_qk=False),
        embed_dim=12,
        depth=1,
        num_heads=3,
        global_pool="avg",
    )
    report = bounds(config.build())
    assert report.chain.bound.value == math.inf
    assert "tie q and k" in report.verdict()


def test_biases_of_an_untied_layer_are_read_and_decide_whether_there_is_a_constant():
    torch.manual_seed(0)
    floored = LRSA(8, 2, tie_qk=False, qkv_bias=True, normalizer="floor")
    with torch.no_grad():
        floored.qkv.bias.zero_()
    plain = attention_constants(floored, n=4, radius=None).max_token
    assert plain.reason == "theorem 3"
    with torch.no_grad():
        floored.qkv.bias[8:16] = 1.0
    key_alone = attention_constants(floored, n=4, radius=None).max_token
    assert not key_alone.is_finite
    assert "a key bias without a query bias" in key_alone.reason
    with torch.no_grad():
        floored.qkv.bias[:8] = 0.5
    different = attention_constants(floored, n=4, radius=None).max_token
    assert different.reason == "theorem 3, with biases"
    assert plain.value < different.value
    with torch.no_grad():
        floored.qkv.bias[:8] = 1.0
    shared = attention_constants(floored, n=4, radius=None).max_token
    assert shared.value == pytest.approx(plain.value)
    symmetric = LRSA(8, 2, tie_qk=False, qkv_bias=True, normalizer="symmetric")
    symmetric.load_state_dict(floored.state_dict())
    assert attention_constants(symmetric, n=4, radius=None).frobenius.is_finite
    paper = LRSA(8, 1, tie_qk=False, qkv_bias=True)
    torch.nn.init.normal_(paper.qkv.bias)
    assert not attention_constants(paper, n=4, radius=None).frobenius.is_finite


def test_a_certified_model_gets_radii_that_hold():
    torch.manual_seed(0)
    tokens = PatchTokens(img_size=4, patch_size=2, in_chans=1)
    model = CertifiedConfig(tokens=tokens, embed_dim=12, depth=2, num_heads=3, num_classes=4)
    model = model.build().double()
    x = images(8)
    report = bounds(model, x, num_steps=5)
    assert_sound(report)
    assert not report.is_vacuous
    assert report.certificate.input_lower > 0
    assert "kept within" in report.verdict()
    assert report.chain.bound.value == pytest.approx(report.certificate.logits_upper)
    assert min(report.radii) > 0
    model.eval()
    with torch.no_grad():
        before = model(x).argmax(-1)
        for seed in range(20):
            step = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).double()
            step = step / step.flatten(1).norm(dim=1)[:, None, None, None]
            moved = x + torch.tensor(report.radii)[:, None, None, None] * step
            assert torch.equal(model(moved).argmax(-1), before)


def test_converted_and_foreign_models_are_read():
    timm = pytest.importorskip("timm")
    from lrformer.interop import convert

    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=3, img_size=32, num_classes=4
    ).double()
    x = images(2, size=32, channels=3)
    for candidate in (model, convert(model, tie_qk=True)):
        assert_sound(bounds(candidate, x, num_steps=3))
    unreadable = convert(model, tie_qk=False)
    assert bounds(unreadable).chain.bound.value == math.inf


def test_transformers_models_are_read():
    transformers = pytest.importorskip("transformers")
    from lrformer.interop import convert

    torch.manual_seed(0)
    config = transformers.ViTConfig(**TINY_TRANSFORMERS)
    model = convert(transformers.ViTForImageClassification(config).double(), tie_qk=True)
    report = bounds(model, images(2, size=8, channels=3), num_steps=3)
    assert_sound(report)
    attn = next(row for row in report.rows if row.name.endswith("attn"))
    assert attn.kind == "LRSA"
    assert attn.measured is not None


def test_convolutional_tokens_and_sequence_pooling_are_covered():
    model = small(tokens=ConvTokens(img_size=8, in_chans=1), global_pool="seq", depth=1)
    assert_sound(bounds(model, images(2, size=8), num_steps=3))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_sequence_pooling_is_bounded_by_the_longest_token_that_the_last_norm_lets_through(norm):
    model = small(global_pool="seq", norm=norm)
    last = model.norm if norm == "pre" else model.blocks[-1].norm2
    longest = 12**0.5 * float(last.weight.detach().abs().max()) + float(last.bias.detach().norm())
    row = next(row for row in bounds(model).rows if row.name == "pool")
    expected = 1 + longest * float(model.pool.score.weight.detach().norm())
    assert row.frobenius.value == row.max_token.value == pytest.approx(expected)


def test_residual_tokens_are_covered_with_the_statistics_that_evaluation_uses():
    tokens = ResidualTokens(img_size=8, in_chans=1, widths=(4, 6), depths=(1, 2))
    model = small(tokens=tokens, global_pool="avg", depth=1)
    model.train()
    for _ in range(3):
        model(5 * images(8, size=8) + 1)
    report = bounds(model.eval(), images(2, size=8), num_steps=3)
    assert_sound(report)


def test_the_constant_of_residual_tokens_multiplies_what_their_layers_stretch():
    embed = ResidualTokens(img_size=4, in_chans=2, widths=(2, 2), depths=(1, 1)).build(2).eval()
    for module in embed.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.dirac_(module.weight)
    first, second = embed.blocks[0], embed.blocks[1]
    first.bn1.running_var.fill_(0.25)
    nn.init.constant_(first.bn2.weight, 5.0)
    second.bn1.running_var.fill_(1 / 16)
    second.shortcut = nn.Conv2d(2, 2, 1, stride=2, bias=False)
    nn.init.constant_(second.shortcut.weight, 1.0)
    embed.bn.weight.data = torch.tensor([1.0, -3.0])
    embed.bn.running_var.zero_()
    embed.bn.eps = 1.0
    embed.proj.weight.data *= 7
    # Ten times in the first branch, beside the identity; a shortcut of ones has norm 2, and reads with its
    # branch what the norm before both has made four times as large.
    expected = (1 + 2 * 5) * 4 * (2 + 1) * 3 * 7
    assert embedding_constants(embed).frobenius.value == pytest.approx(expected, rel=1e-3)
    second.raw_shortcut = True  # which the norm does not stretch
    expected = (1 + 2 * 5) * (2 + 4 * 1) * 3 * 7
    assert embedding_constants(embed).frobenius.value == pytest.approx(expected, rel=1e-3)


def test_a_length_free_alpha_is_none_that_the_paper_speaks_of():
    model = override(small_config(depth=1), {"length_free": True}).build().double()
    report = bounds(model, images(2), num_steps=1)
    assert next(row for row in report.rows if row.name == "blocks.0.attn").printed is None


def test_progress_names_what_is_measured_and_counts_to_the_end():
    told = []
    model = small(depth=1)
    report = bounds(model, images(2), num_steps=1, progress=lambda *what: told.append(what))
    names = [name for name, _, _ in told]
    assert names[:2] == ["logits", "input to blocks.0"]
    assert set(names) >= {row.name for row in report.rows if row.measured is not None}
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert len(told) <= told[0][2] == told[-1][2]


@pytest.mark.gpu
def test_a_model_on_a_gpu_has_the_constants_that_it_has_on_the_cpu():
    model, x = small(), images(2)
    plain = bounds(model, x, num_steps=5, radius=1e-3)
    ours = bounds(model.cuda(), x.cuda(), num_steps=5, radius=1e-3)
    assert ours.chain.bound.value == pytest.approx(plain.chain.bound.value, rel=1e-6)
    assert ours.local.constants == pytest.approx(plain.local.constants, rel=1e-6)
    assert_sound(ours)


def test_the_map_to_a_place_does_not_run_what_comes_after_it():
    model = small(depth=2)
    model.blocks[1].register_forward_hook(lambda *_: pytest.fail("the rest of the model ran"))
    x = images(2)
    tokens = _Prefix(model, model.blocks[0])(x)
    assert torch.equal(tokens, model.blocks[0](model.tokenizer(x) + model.pos_embed))


def test_an_unknown_model_gets_infinity_with_a_reason_and_is_still_measured():
    layer = nn.Linear(3, 2)
    report = bounds(layer, torch.randn(4, 3), num_steps=50)
    assert report.chain.bound.value == math.inf
    assert "Linear" in report.rows[0].frobenius.reason
    sigma = float(torch.linalg.matrix_norm(layer.weight.detach(), ord=2))
    assert max(report.measured) == pytest.approx(sigma, rel=1e-4)


def test_a_random_feature_head_is_bounded_by_theorem_12():
    torch.manual_seed(0)
    config = RandomFeatureGPConfig(num_random_features=64)
    head = RandomFeatureGP(6, 3, config).double().eval()
    constant = head_constant(head).frobenius.value
    x = torch.randn(500, 6, dtype=torch.float64)
    with torch.no_grad():
        outputs, moved = head(x), head(x + 1e-6)
    assert float((outputs - moved).norm(dim=1).max()) / (1e-6 * math.sqrt(6)) <= constant


def test_a_process_fitted_afterwards_leaves_the_constant_of_the_linear_head():
    head = FittedGP(6, 3, RandomFeatureGPConfig(feature_scale="calibrate"))
    sigma = float(torch.linalg.matrix_norm(head.linear.weight.detach(), ord=2))
    assert head_constant(head).frobenius.value == pytest.approx(sigma, rel=1e-6)


def test_a_method_with_backbone_and_head_is_read_as_one_model():
    method = create_method("deterministic", lambda: small(num_classes=0), 3).double()
    report = bounds(method, images(), num_steps=3)
    assert_sound(report)
    attn = next(row for row in report.rows if row.name == "blocks.0.attn")
    assert attn.measured is not None


def test_the_report_is_plain_json_and_readable_text():
    report = bounds(small(norm="post", attention="dot_product"), images(2), num_steps=2)
    record = json.loads(json.dumps(report.to_record(), allow_nan=False))
    assert record["chain"]["bound"]["value"] == "inf"
    assert record["verdict"] == report.verdict()
    text = str(report)
    assert "blocks.1.attn" in text
    assert "guarantees nothing at other inputs" in text


def test_pairs_are_reported_by_name_with_the_distances_that_tokens_keep():
    model = small().eval()
    x = images(6)
    report = bounds(model, pairs={"known": (x[:3], x[3:]), "flipped": (x, x.flip(-1))})
    assert set(report.distortions) == {"known", "flipped"}
    with torch.no_grad():
        gap = model.forward_features(x[:3]) - model.forward_features(x[3:])
        ratios = gap.flatten(1).norm(dim=1) / (x[:3] - x[3:]).flatten(1).norm(dim=1)
    assert report.distortions["known"].smallest == pytest.approx(float(ratios.min()))
    assert report.distortions["known"].largest == pytest.approx(float(ratios.max()))
    assert "pairs (flipped)" in str(report)


def test_measuring_leaves_the_model_as_it_was():
    model = small().train()
    backends = [block.attn.backend for block in model.blocks]
    bounds(model, images(1), num_steps=1)
    assert model.training
    assert [block.attn.backend for block in model.blocks] == backends


def test_the_default_model_of_the_package_can_be_reported():
    report = bounds(create_model("lrformer_digits", depth=1))
    assert report.num_tokens == 16


def test_a_name_is_no_model():
    with pytest.raises(ConfigError, match="must be a module"):
        bounds("lrformer_digits")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_no_number_is_named(value):
    model = small()
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight[0, 0] = value
    with pytest.raises(NotFiniteError, match=r"the weight blocks\.1\.mlp\.fc1\.weight holds NaN"):
        bounds(model)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inputs_that_are_no_numbers_are_named_before_anything_is_measured(bad):
    model, x = small(depth=1), images(3)
    x[1, 0, 0, 0] = bad
    with pytest.raises(ConfigError, match="x holds NaN or infinity in input 1"):
        bounds(model, x)
    with pytest.raises(
        ConfigError, match=r"pairs\['moved'\]\[1\] holds NaN or infinity in input 1"
    ):
        bounds(model, pairs={"moved": (images(3), x)})


def test_raw_images_are_refused_with_the_way_to_inputs():
    with pytest.raises(ConfigError, match=r"x \(a tensor of torch.uint8\) .* run.preprocess"):
        bounds(small(depth=1), (255 * images()).to(torch.uint8))


def test_a_model_whose_output_overflows_has_nothing_to_measure():
    class Overflowing(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :3].exp()

    x = images(3)
    x[2] = 1e4
    with pytest.raises(NotFiniteError, match="for input 2 of x is NaN or infinite"):
        bounds(Overflowing(), x)


def test_the_radii_of_a_model_with_large_logits_are_not_those_of_rounded_ones():
    torch.manual_seed(0)
    tokens = PatchTokens(img_size=4, patch_size=2, in_chans=1)
    config = CertifiedConfig(tokens=tokens, embed_dim=12, depth=2, num_heads=3, num_classes=4)
    model = config.build()
    with torch.no_grad():
        model.head.bias.add_(3e4)  # steps of .002 in float32
    x = images(64).float()
    rounded = bounds(model, x, num_steps=1)
    exact = bounds(copy.deepcopy(model).double(), x.double(), num_steps=1)
    assert rounded.margins == pytest.approx(exact.margins, rel=1e-6, abs=1e-9)


def test_the_radii_of_a_model_in_16_bits_are_those_of_its_weights_without_rounding():
    torch.manual_seed(0)
    tokens = PatchTokens(img_size=4, patch_size=2, in_chans=1)
    config = CertifiedConfig(tokens=tokens, embed_dim=12, depth=2, num_heads=3, num_classes=4)
    model = config.build().bfloat16()
    x = images(64).bfloat16()
    rounded = bounds(model, x, num_steps=1)
    exact = bounds(copy.deepcopy(model).double(), x.double(), num_steps=1)
    assert rounded.margins == pytest.approx(exact.margins)
    assert rounded.radii == pytest.approx(exact.radii, rel=1e-2)
    assert next(model.parameters()).dtype == torch.bfloat16
