import dataclasses

import pytest
import torch

from lrformer.attention import l2_attention, lrsa_attention
from lrformer.bench.attention_contenders import alpha_of, draw_inputs, make_contenders
from lrformer.bench.attention_errors import exact_results, relative_errors
from lrformer.bench.place import Place
from lrformer.bench.shapes import AttentionShape

SHAPE = AttentionShape(batch=2, num_heads=3, num_tokens=17, head_dim=8)


def drawn(dtype=torch.float32):
    return draw_inputs(SHAPE, dtype, Place("cpu"), 0)


def whole(attention, q, k, v, x):
    """The attention of all heads at once, independent of the head-by-head path."""
    if attention == "lrsa":
        alpha = alpha_of(q.shape[2])
        return lrsa_attention(q, q, v, x, alpha=alpha, backend="reference")
    if attention == "l2":
        return l2_attention(q, q, v, backend="reference")
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


@pytest.mark.parametrize("attention", ["dot_product", "lrsa", "l2"])
def test_the_exact_results_are_those_of_autograd_over_all_heads_in_float64(attention):
    inputs = drawn()
    exact = exact_results(attention, inputs)
    q, k, v, x = (
        t.detach().double().requires_grad_() for t in (inputs.q, inputs.k, inputs.v, inputs.x)
    )
    out = whole(attention, q, k, v, x)
    out.backward(inputs.grad.double())
    assert torch.allclose(exact["out"], out[:1], rtol=1e-12, atol=1e-12)
    for name in inputs.leaves(attention):
        expected = {"q": q, "k": k, "v": v, "x": x}[name].grad[:1]
        assert torch.allclose(exact[name], expected, rtol=1e-10, atol=1e-12), name


def test_float32_contenders_are_near_float64_and_bfloat16_ones_are_not():
    place = Place("cpu")
    for contender in make_contenders(place, ("reference", "sdpa"), is_compiled=False):
        fine, coarse = (
            relative_errors(contender, inputs, exact_results(contender.attention, inputs))
            for inputs in (drawn(), drawn(torch.bfloat16))
        )
        assert max(fine.values()) < 1e-3, contender.name
        assert 1e-3 < coarse["out"] < 3e-2, contender.name


def test_an_error_of_a_tenth_is_found_as_one():
    inputs = drawn()
    exact = exact_results("lrsa", inputs)
    right = next(
        c
        for c in make_contenders(Place("cpu"), ("reference",), is_compiled=False)
        if c.attention == "lrsa"
    )
    wrong = dataclasses.replace(right, attend=lambda **leaves: 1.1 * right.attend(**leaves))
    for value in relative_errors(wrong, inputs, exact).values():
        assert value == pytest.approx(0.1, rel=1e-3)


def test_inputs_are_fresh_for_every_seed_and_the_same_for_one():
    place = Place("cpu")
    first, again, other = (draw_inputs(SHAPE, torch.float32, place, seed) for seed in (0, 0, 1))
    assert torch.equal(first.q, again.q)
    assert not torch.allclose(first.q, other.q)
    assert not torch.allclose(first.q, first.k)
