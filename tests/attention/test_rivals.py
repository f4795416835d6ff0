"""Dot-product, L2 and SCSA attention against their definitions, and against timm."""

import math

import pytest
import torch

from lrformer.attention import (
    LRSA,
    SCSA,
    DotProductAttention,
    L2Attention,
    dot_product_attention,
    l2_attention,
    scsa_attention,
    use_backend,
)
from lrformer.attention.masks import narrowed
from lrformer.core import ConfigError
from tests.attention import definition
from tests.attention.inputs import projections, tokens
from tests.tolerance import GRADIENT_TOLERANCE, TOLERANCE, assert_close

BACKENDS = ("reference", "sdpa")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["gauss", "offset", "equal", "zero"])
def test_each_function_equals_its_definition_in_float64(backend, kind):
    x = tokens(kind, 2, 13, 24)
    q, k, v = projections(x, 3, tie_qk=False)
    tolerance = TOLERANCE[torch.float64]
    assert_close(
        dot_product_attention(q, k, v, backend=backend), definition.dot_product(q, k, v), tolerance
    )
    assert_close(l2_attention(q, q, v, backend=backend), definition.l2(q, q, v), tolerance)
    assert_close(l2_attention(q, k, v, backend=backend), definition.l2(q, k, v), tolerance)
    assert_close(
        scsa_attention(q, k, v, tau=5.0, nu=0.5, eps=1e-3, backend=backend),
        definition.scsa(q, k, v, tau=5.0, nu=0.5, eps=1e-3),
        tolerance,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function", [dot_product_attention, l2_attention, scsa_attention], ids=lambda f: f.__name__
)
def test_causal_attention_and_padding_equal_the_visible_part_alone(function, backend):
    x = tokens("gauss", 1, 9, 24)
    q, k, v = projections(x, 3, tie_qk=False)
    causal = function(q, k, v, is_causal=True, backend=backend)
    for last in range(9):
        seen = slice(0, last + 1)
        alone = function(q[:, :, seen], k[:, :, seen], v[:, :, seen], backend=backend)
        assert_close(causal[:, :, last], alone[:, :, last], 1e-12)
    additive = torch.zeros(9, 9, dtype=torch.float64).masked_fill(
        ~torch.ones(9, 9, dtype=torch.bool).tril(), float("-inf")
    )
    assert_close(function(q, k, v, attn_mask=additive, backend=backend), causal, 1e-12)
    padding = torch.tensor([[False] * 6 + [True] * 3])
    padded = function(q, k, v, key_padding_mask=padding, backend=backend)[:, :, :6]
    alone = function(q[:, :, :6], k[:, :, :6], v[:, :, :6], backend=backend)
    assert_close(padded, alone, 1e-12)
    both = function(q, k, v, is_causal=True, key_padding_mask=padding, backend=backend)[:, :, :6]
    assert_close(both, causal[:, :, :6], 1e-12)


def test_dot_product_attention_equals_timms_with_the_same_weights():
    from timm.layers import Attention

    theirs = Attention(24, num_heads=3, qkv_bias=True).double().eval()
    ours = DotProductAttention(24, 3, qkv_bias=True).double().eval()
    ours.load_state_dict(theirs.state_dict())
    x = tokens("gauss", 2, 11, 24)
    assert_close(ours(x), theirs(x), 1e-12)
    visible = torch.ones(11, 11, dtype=torch.bool).tril()
    assert_close(ours(x, attn_mask=visible), theirs(x, attn_mask=visible), 1e-12)


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_the_provable_form_multiplies_the_values_by_the_query_map(qkv_bias):
    layer = L2Attention(12, 3, provable=True, qkv_bias=qkv_bias).double()
    x = tokens("gauss", 2, 7, 12)
    q, k, v = layer.project(x)
    assert k is q
    weight = layer.qkv.weight
    for head in range(3):
        rows = slice(4 * head, 4 * head + 4)
        tied, values = weight[:12][rows].T, weight[12:][rows].T
        right = x @ (tied @ tied.T / 2.0) @ values
        if qkv_bias:
            right = right + layer.qkv.bias[12:][rows]
        assert_close(v[:, head], right, 1e-12)


@pytest.mark.parametrize("name", ["tau", "nu", "eps"])
def test_scsa_refuses_settings_that_are_not_positive(name):
    with pytest.raises(ConfigError, match=rf"{name} \(0.0\) must be positive"):
        SCSA(12, 3, **{name: 0.0})


@pytest.mark.unhooked
@pytest.mark.parametrize(
    "function", [dot_product_attention, l2_attention, scsa_attention], ids=lambda f: f.__name__
)
def test_masks_and_shapes_that_cannot_be_right_are_refused(function):
    q, k, v = projections(tokens("gauss", 2, 5, 12), 3, tie_qk=False)
    with pytest.raises(ConfigError, match="must be bool"):
        function(q, k, v, key_padding_mask=torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(ConfigError, match=r"must be \(batch, tokens\) = \(2, 5\)"):
        function(q, k, v, key_padding_mask=torch.zeros(5, 2, dtype=torch.bool))
    with pytest.raises(ConfigError, match="one shape"):
        function(q, k[:, :2], v)
    with pytest.raises(ConfigError, match="dropout_p"):
        function(q, k, v, dropout_p=1.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function", [dot_product_attention, l2_attention, scsa_attention], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("rubbish", [1e6, float("nan")])
def test_what_stands_in_padded_tokens_does_not_matter(function, backend, rubbish):
    q, k, v = projections(tokens("gauss", 1, 5, 12), 3, tie_qk=False)
    mask = torch.tensor([[False, False, False, True, True]])
    clean = function(q, k, v, key_padding_mask=mask, backend=backend)
    for part in (q, k, v):
        part[:, :, 3:] = rubbish
    assert torch.equal(function(q, k, v, key_padding_mask=mask, backend=backend), clean)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [DotProductAttention, L2Attention, SCSA, LRSA])
def test_what_stands_in_padded_tokens_has_no_part_in_the_gradients_of_the_weights(kind, backend):
    module = kind(12, 3, backend=backend).double()
    x = tokens("gauss", 2, 6, 12)
    mask = torch.tensor([[False] * 4 + [True] * 2] * 2)

    def gradients(outputs):
        return torch.autograd.grad(outputs.square().sum(), list(module.parameters()))

    alone = gradients(module(x[:, :4]))
    for rubbish in (1e6, math.nan, math.inf):
        x[:, 4:] = rubbish
        padded = gradients(module(x, key_padding_mask=mask)[:, :4])
        for found, expected in zip(padded, alone, strict=True):
            assert_close(found, expected, GRADIENT_TOLERANCE[torch.float64])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tie_qk", [False, True])
def test_a_padded_key_never_wins_however_large_and_far_from_zero_the_others_are(backend, tie_qk):
    x = 100 * (tokens("gauss", 1, 9, 16) + 10)
    x[:, 6:] = 0
    q, k, v = projections(x, 2, tie_qk=tie_qk)
    mask = torch.tensor([[False] * 6 + [True] * 3])
    seen = [part[:, :, :6] for part in (q, k, v)]
    alone = l2_attention(seen[0], seen[0] if tie_qk else seen[1], seen[2], backend=backend)
    padded = l2_attention(q, k, v, key_padding_mask=mask, backend=backend)[:, :, :6]
    assert_close(padded, alone, 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_padded_key_does_not_win_where_another_mask_takes_the_near_ones_away(backend):
    q, _, v = projections(300 * tokens("gauss", 1, 9, 16), 2, tie_qk=True)
    mask = torch.tensor([[False] * 6 + [True] * 3])
    others = ~torch.eye(9, dtype=torch.bool)
    found = l2_attention(q, q, v, attn_mask=others, key_padding_mask=mask, backend=backend)
    visible = others & ~mask
    expected = l2_attention(q, q, v, attn_mask=visible, backend="reference")
    assert_close(found[:, :, :6], expected[:, :, :6], 1e-9)


@pytest.mark.parametrize("kind", [L2Attention, LRSA])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sample_that_is_all_padding_spoils_nothing(kind, dtype):
    torch.manual_seed(0)
    module = kind(16, num_heads=2, backend="sdpa").to(dtype)
    x = torch.randn(2, 5, 16, dtype=dtype)
    padding = torch.tensor([[False] * 5, [True] * 5])
    y = module(x, key_padding_mask=padding)
    assert y.isfinite().all()
    y[0].float().square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_scsa_refuses_a_negative_temperature_as_a_function_too():
    q, k, v = projections(tokens("gauss", 1, 5, 12), 3, tie_qk=False)
    with pytest.raises(ConfigError, match="tau"):
        scsa_attention(q, k, v, tau=-1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_smallest_number_of_a_wider_mask_does_not_become_infinite(dtype):
    x = tokens("gauss", 2, 5, 24).to(dtype)
    mask = torch.zeros(5, 5)
    mask[2] = torch.finfo(torch.float32).min
    mask[3, 1:] = -math.inf
    for module in (DotProductAttention(24, 3), L2Attention(24, 3)):
        module = module.to(dtype).eval()
        q, k, v = module.project(x)
        outputs = []
        for backend in BACKENDS:
            with use_backend(module, backend):
                masks = module.check_masks(x, mask, False, None)
                outputs.append(module.attend(q, k, v, x, masks=masks, dropout_p=0.0))
        first, *others = outputs
        assert first[:, :, 2].abs().max() > 0
        assert torch.equal(first[:, :, 3], v[:, :, 0])
        for other in others:
            assert_close(other, first, TOLERANCE.get(dtype, 2e-2))


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_mask_of_any_dtype_is_infinite_where_it_was(given, narrow):
    mask = torch.tensor([0.0, -1.0, torch.finfo(given).min, -math.inf], dtype=given)
    found = narrowed(mask, narrow)
    assert found.dtype == narrow
    assert found.isinf().tolist() == [False, False, False, True]
    assert found[:2].tolist() == [0.0, -1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("is_additive", [False, True])
def test_a_query_that_may_see_nothing_gets_nothing_by_every_backend(dtype, is_additive):
    x = tokens("gauss", 2, 5, 24).to(dtype)
    allowed = torch.ones(5, 5, dtype=torch.bool)
    allowed[2] = False
    mask = torch.zeros(5, 5).masked_fill(~allowed, float("-inf")) if is_additive else allowed
    # The smallest number is a score as any other: where all have it, they are alike.
    low = torch.zeros(5, 5, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
    for module in (DotProductAttention(24, 3), L2Attention(24, 3), SCSA(24, 3)):
        module = module.to(dtype).eval()
        q, k, v = module.project(x + 3)
        for backend in BACKENDS:
            with use_backend(module, backend):
                masks = module.check_masks(x, mask, False, None)
                out = module.attend(q, k, v, x, masks=masks, dropout_p=0.0)
                weights = module.weights(q, k, x, masks=masks)
            assert out[:, :, 2].abs().max() == 0
            assert weights[:, :, 2].abs().max() == 0
            assert out[:, :, 1].abs().max() > 0
        if is_additive and dtype == torch.float64:
            masks = module.check_masks(x, low, False, None)
            assert_close(
                module.weights(q, k, x, masks=masks)[:, :, 2].sum(-1), torch.ones(2, 3), 1e-9
            )
