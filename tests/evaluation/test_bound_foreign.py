"""Of models that others wrote only what was read is bounded; a part more, and the bound is infinite."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from lrformer import bounds, convert
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
    ],
    ids=["norm of the embedding", "norm before the blocks", "second head", "gate in the MLP"],
)
def test_a_part_that_is_not_read_makes_the_bound_infinite(settings):
    if settings.get("mlp_layer") == "GluMlp":
        settings = {"mlp_layer": pytest.importorskip("timm.layers").GluMlp}
    assert math.isfinite(bounds(timm_model()).chain.bound.value)
    assert bounds(timm_model(**settings)).chain.bound.value == math.inf


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
