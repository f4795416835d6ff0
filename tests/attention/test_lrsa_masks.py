"""What is padding, or hidden from a query, has no part in LRSA."""

import pytest
import torch

from lrformer.attention import LRSA, lrsa_attention, use_backend
from lrformer.core import ConfigError
from tests.attention.inputs import projections, tokens
from tests.tolerance import TOLERANCE, assert_close

BACKENDS = ("reference", "sdpa")


def test_a_padded_sample_gives_what_it_gives_alone_whatever_stands_in_the_padding():
    layer = LRSA(24, 3, alpha=50.0).double()
    x = tokens("gauss", 1, 9, 24)
    garbage = torch.full((1, 4, 24), float("nan"), dtype=torch.float64)
    mask = torch.tensor([[False] * 9 + [True] * 4])
    for backend in BACKENDS:
        with use_backend(layer, backend):
            padded = layer(torch.cat([x, garbage], 1), key_padding_mask=mask)[:, :9]
            assert_close(padded, layer(x), TOLERANCE[torch.float64])


def test_no_gradient_reaches_or_leaves_the_padding():
    layer = LRSA(24, 3)
    x = torch.randn(1, 6, 24, requires_grad=True)
    mask = torch.tensor([[False, False, False, False, True, True]])
    layer(x, key_padding_mask=mask)[:, :4].square().sum().backward()
    assert x.grad is not None
    assert x.grad[:, :4].abs().min() > 0
    assert torch.equal(x.grad[:, 4:], torch.zeros(1, 2, 24))


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_one_token_left_by_the_mask_gives_its_own_value(backend):
    x = tokens("gauss", 1, 5, 16)
    q, k, v = projections(x, 2, tie_qk=True)
    mask = torch.tensor([[True, True, False, True, True]])
    out = lrsa_attention(q, k, v, x, alpha=100.0, key_padding_mask=mask, backend=backend)
    assert_close(out[:, :, 2], v[:, :, 2], 1e-12)
    assert out.isfinite().all()


def test_a_mask_that_differs_between_queries_is_refused():
    layer = LRSA(12, 3)
    x = torch.randn(1, 5, 12)
    with pytest.raises(ConfigError, match="future would leak"):
        layer(x, is_causal=True)
    with pytest.raises(ConfigError, match="key_padding_mask"):
        layer(x, attn_mask=torch.ones(5, 5, dtype=torch.bool).tril())
    with pytest.raises(ConfigError, match="key_padding_mask"):
        layer(x, attn_mask=torch.zeros(1, 1, 1, 5))


def test_a_boolean_mask_of_whole_keys_is_read_as_padding():
    layer = LRSA(12, 3)
    x = torch.randn(2, 5, 12)
    padding = torch.tensor([[False, False, True, False, False], [False, False, False, True, True]])
    as_attn_mask = layer(x, attn_mask=~padding[:, None, None, :])
    assert torch.equal(as_attn_mask, layer(x, key_padding_mask=padding))


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_a_sample_that_is_all_padding_has_no_part_in_the_gradient_of_alpha(backend):
    module = LRSA(16, 2, length_free=True, learnable_alpha=True)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1] = True
    with use_backend(module, backend):
        module(x[:1])[0].square().sum().backward()
        assert module.log_alpha_factor is not None
        alone = module.log_alpha_factor.grad.clone()
        module.zero_grad()
        module(x, key_padding_mask=padding)[0].square().sum().backward()
    assert module.log_alpha_factor.grad.isfinite().all()
    assert_close(module.log_alpha_factor.grad, alone, 1e-4)
