"""Matching the temperature: what was asked to be equal is equal."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lrformer.attention import LRSA, NORMALIZERS, SCSA, attention_maps
from lrformer.core import make_generator
from lrformer.interop import convert
from lrformer.interop.convert import find_sites
from lrformer.interop.temperature import Moments
from tests.interop.zoo import bert_classifier, pictures, texts, timm_model, vit_classifier

pytest.importorskip("transformers")


def row_entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy of each head's rows."""
    return -(weights * weights.clamp_min(1e-300).log()).sum(-1).mean((0, 2))


def first_maps(model: Any, *inputs: Tensor) -> Tensor:
    return next(iter(attention_maps(model, *inputs).values()))


@pytest.mark.parametrize(
    "settings",
    [
        *({"attention": "lrsa", "normalizer": name} for name in NORMALIZERS),
        {"attention": "lrsa", "tie_qk": True},
        {"attention": "lrsa", "length_free": True},
        {"attention": "lrsa_m"},
        {"attention": "l2"},
    ],
    ids=str,
)
def test_each_head_starts_at_the_entropy_of_the_original(settings: dict[str, Any]) -> None:
    model = timm_model("vit_tiny_patch16_224")
    original = row_entropy(first_maps(convert(model, "dot_product"), pictures()))
    matched = row_entropy(
        first_maps(convert(model, calibration=pictures(), **settings), pictures())
    )
    assert torch.allclose(matched, original, atol=1e-3)
    assert original.max() < 0.95 * math.log(17), "the attention must not be uniform"


def test_scsa_starts_at_the_mean_entropy_of_its_heads_and_the_size_of_the_values() -> None:
    model = timm_model("vit_tiny_patch16_224")
    original = row_entropy(first_maps(convert(model, "dot_product"), pictures()))
    converted = convert(model, "scsa", calibration=pictures())
    matched = row_entropy(first_maps(converted, pictures()))
    assert matched.mean().item() == pytest.approx(original.mean().item(), abs=1e-3)
    assert isinstance(converted.blocks[0].attn, SCSA)
    assert converted.blocks[0].attn.nu != 1.0


def test_padded_words_do_not_take_part_in_matching() -> None:
    bert = bert_classifier()
    words = texts(2, 5)
    longer = torch.cat([words, texts(2, 4)], 1)
    mask = torch.tensor([[1] * 5 + [0] * 4] * 2)
    alone = convert(bert, "lrsa", calibration=words)
    padded = convert(bert, "lrsa", calibration={"input_ids": longer, "attention_mask": mask})
    for one, other in zip(lrsa_layers(alone), lrsa_layers(padded), strict=True):
        torch.testing.assert_close(one.alpha, other.alpha, rtol=1e-4, atol=0)


def lrsa_layers(model: nn.Module) -> list[LRSA]:
    return [module for module in model.modules() if isinstance(module, LRSA)]


@pytest.mark.parametrize(
    ("normalizer", "length_free"),
    [
        *((name, False) for name in NORMALIZERS),
        ("paper", True),
        ("floor", True),
        ("symmetric", True),
    ],
)
def test_the_closed_form_gives_the_factor_of_dot_products_on_normal_tokens(
    normalizer: str, length_free: bool
) -> None:
    model = timm_model("vit_tiny_patch16_224")
    converted = convert(model, "lrsa", normalizer=normalizer, length_free=length_free)
    block = converted.blocks[0]
    noise = torch.randn(64, 17, 192, generator=make_generator(5), dtype=torch.float64)
    x = block.norm1(noise)
    q, k, _ = block.attn.project(x)
    factor = 2 * block.attn.coefficient(q, k, x).mean(0)
    expected = torch.full_like(factor, 64**-0.5)
    # The largest of 17 token norms is above the root mean square that the closed form takes.
    torch.testing.assert_close(factor, expected, rtol=0.25, atol=0)


def test_the_moments_of_the_closed_form_are_those_of_drawn_tokens() -> None:
    block = timm_model("vit_tiny_patch16_224").blocks[0]
    with torch.no_grad():
        block.norm1.bias.add_(1.0)
        (site, *_) = find_sites(timm_model("vit_tiny_patch16_224")).sites
        projections = dataclasses.replace(site.projections, norm=block.norm1)
        moments = Moments(projections, num_tokens=17)
        noise = torch.randn(20_000, 192, generator=make_generator(5), dtype=torch.float64)
        x = noise * block.norm1.weight + block.norm1.bias
        for norm, weight, bias in (
            (moments.norm_q, projections.w_q, projections.b_q),
            (moments.norm_k, projections.w_k, None),
            (moments.norm_v, projections.w_v, projections.b_v),
        ):
            drawn = nn.functional.linear(x, weight, bias).unflatten(-1, (3, 64))
            expected = drawn.square().sum(-1).mean(0).sqrt()
            torch.testing.assert_close(norm.double(), expected, rtol=0.01, atol=0)
        assert moments.token == pytest.approx(x.square().sum(-1).mean().sqrt().item(), rel=0.01)


@pytest.mark.parametrize("make", [vit_classifier, bert_classifier])
def test_the_closed_form_follows_the_number_of_tokens(make: Any) -> None:
    model = make()
    few, many = (convert(model, "lrsa", num_tokens=n) for n in (16, 64))
    for one, other in zip(lrsa_layers(few), lrsa_layers(many), strict=True):
        torch.testing.assert_close(2 * one.alpha, other.alpha)
    free = [convert(model, "lrsa", length_free=True, num_tokens=n) for n in (16, 64)]
    for one, other in zip(*map(lrsa_layers, free), strict=True):
        torch.testing.assert_close(one.alpha, other.alpha)


def test_matching_beats_the_closed_form_and_both_beat_a_wrong_temperature() -> None:
    model, x = timm_model("vit_tiny_patch16_224"), pictures(8)
    with torch.no_grad():
        expected = model(x)
        moved = [
            float((convert(model, "lrsa", **settings)(x) - expected).norm())
            for settings in ({"calibration": x}, {}, {"alpha": 1000.0})
        ]
    assert sorted(moved) == moved


def test_a_single_token_has_no_entropy_and_falls_back_to_the_factor() -> None:
    converted = convert(bert_classifier(), "lrsa", calibration=texts(2, 1))
    for layer in lrsa_layers(converted):
        assert layer.alpha.isfinite().all()
        assert (layer.alpha > 0).all()
    assert converted(texts(2, 1)).logits.isfinite().all()


def test_a_model_in_training_mode_is_calibrated_as_it_predicts_and_stays_in_its_mode() -> None:
    model = timm_model("vit_tiny_patch16_224", proj_drop_rate=0.5, drop_path_rate=0.5)
    expected = convert(model, calibration=pictures()).state_dict()
    converted = convert(model.train(), calibration=pictures())
    assert converted.training
    for name, value in converted.state_dict().items():
        assert torch.equal(value, expected[name]), name
