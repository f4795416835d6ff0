"""Constants of single layers against a second writing of their theorems."""

import math

import pytest
import torch
from torch.func import jacrev

from lrformer.attention import LRSA, DotProductAttention
from lrformer.evaluation.bound_ends import embedding_constants, head_constant
from lrformer.evaluation.bound_modules import (
    activation_name,
    attention_constants,
    head_weights,
    norm_constants,
)
from lrformer.heads import RandomFeatureGP, RandomFeatureGPConfig
from lrformer.lipschitz.layers import activation_constant
from lrformer.models import ConvTokens


def test_overlapping_pools_count_a_pixel_four_times():
    embed = ConvTokens(img_size=8, in_chans=1, kernel_size=3).build(2).eval()
    taps = 1.0
    for conv in embed.convs:
        weight = conv.weight.detach().double().flatten(2)
        taps *= sum(float(torch.linalg.matrix_norm(weight[..., i], ord=2)) for i in range(9))
    expected = 2 ** len(embed.convs) * taps
    assert embedding_constants(embed).frobenius.value == pytest.approx(expected)


def test_a_length_free_alpha_is_bounded_as_the_alpha_that_it_stands_for():
    torch.manual_seed(0)
    free = LRSA(8, 2, alpha=3.0, length_free=True)
    literal = LRSA(8, 2, alpha=3.0 * math.sqrt(9))
    literal.qkv.load_state_dict(free.qkv.state_dict())
    literal.proj.load_state_dict(free.proj.state_dict())
    ours, expected = (attention_constants(m, n=9, radius=None) for m in (free, literal))
    assert ours.frobenius.value == pytest.approx(expected.frobenius.value)
    assert ours.max_token.value == pytest.approx(expected.max_token.value)


def test_biases_of_dot_products_are_one_more_coordinate_that_is_one():
    torch.manual_seed(0)
    module = DotProductAttention(6, 1, qkv_bias=True).double()
    torch.nn.init.normal_(module.qkv.bias)
    n, radius = 4, 2.0
    w_q, w_k, w_v = module.qkv.weight.detach().chunk(3)
    b_q, b_k, _ = module.qkv.bias.detach().chunk(3)
    wide_q, wide_k = (torch.cat([w.T, b[None]]) for w, b in ((w_q, b_q), (w_k, b_k)))
    slope = float(torch.linalg.matrix_norm(wide_q @ wide_k.T, ord=2)) * (radius**2 + 1) / 6**0.5
    outer = module.proj.weight.detach() @ w_v
    bracket = 1 + 2 * slope
    found = attention_constants(module, n=n, radius=radius).max_token.value
    assert found >= bracket * float(torch.linalg.matrix_norm(outer, ord=2)) * (1 - 1e-9)


def test_a_pixel_in_four_pooling_windows_moves_four_tokens():
    embed = ConvTokens(img_size=4, in_chans=1, kernel_size=1).build(1)
    torch.nn.init.ones_(embed.convs[0].weight)
    peak = torch.zeros(1, 1, 4, 4)
    peak[..., 1, 1] = 1
    slopes = jacrev(embed)(peak)[..., 1, 1]
    assert float(slopes.detach().norm()) == embedding_constants(embed).frobenius.value == 2


def test_flat_features_are_stretched_by_the_norm_inside_a_random_feature_head():
    torch.manual_seed(0)
    config = RandomFeatureGPConfig(num_random_features=64, feature_scale="layer_norm")
    head = RandomFeatureGP(6, 3, config).double().eval()
    slopes = jacrev(head)(torch.zeros(1, 6, dtype=torch.float64)).reshape(3, 6)
    found, constant = float(torch.linalg.matrix_norm(slopes.detach(), ord=2)), head_constant(head)
    assert 0.01 * constant.frobenius.value < found <= constant.frobenius.value


@pytest.mark.parametrize("tie_qk", [True, False])
def test_a_projection_of_another_width_than_queries_keys_and_values_have_is_not_read(tie_qk):
    module = LRSA(8, 2, tie_qk=tie_qk)
    assert head_weights(module) is not None
    for width in (16, 20, 24, 32):
        module.qkv = torch.nn.Linear(8, width, bias=False)
        assert (head_weights(module) is not None) == (width == (16 if tie_qk else 24))


@pytest.mark.parametrize(
    "module",
    [torch.nn.GELU(), torch.nn.GELU(approximate="tanh"), torch.nn.SiLU(), torch.nn.ReLU()],
    ids=repr,
)
def test_an_activation_is_known_by_the_name_of_its_steepest_slope(module):
    name = activation_name(module)
    assert name is not None
    x = torch.linspace(-6, 6, 100_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(module(x).sum(), x)
    # The two kinds of GELU differ in the fifth digit, and the constants are rounded up.
    assert 0 <= activation_constant(name) - float(slope.abs().max()) < 1e-5


def test_an_rms_norm_with_the_eps_of_its_dtype_has_no_constant():
    plain, known = torch.nn.RMSNorm(4), torch.nn.RMSNorm(4, eps=0.25)
    assert plain.eps is None
    assert norm_constants(plain).frobenius.value == math.inf
    assert norm_constants(known).frobenius.value == pytest.approx(2.0)
