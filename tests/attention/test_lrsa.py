import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrformer.attention import LRSA, NORMALIZERS, lrsa_attention, lrsa_coefficient, use_backend
from lrformer.attention.coefficient import CoefficientSettings, tied_coefficient
from lrformer.core import ConfigError
from tests.attention import definition
from tests.attention.inputs import KINDS, projections, tokens
from tests.tolerance import GRADIENT_TOLERANCE, TOLERANCE, assert_close, relative_error

BACKENDS = ("reference", "sdpa")
LENGTHS = (1, 2, 17, 65, 197)


def gradients(function, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the output and the gradients of a fixed random functional of it; tied stays tied."""
    q_leaf = q.detach().clone().requires_grad_()
    k_leaf = q_leaf if k is q else k.detach().clone().requires_grad_()
    v_leaf, x_leaf = (part.detach().clone().requires_grad_() for part in (v, x))
    out = function(q_leaf, k_leaf, v_leaf, x_leaf)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).bfloat16()
    leaves = [q_leaf, v_leaf, x_leaf] if k is q else [q_leaf, k_leaf, v_leaf, x_leaf]
    grads = torch.autograd.grad(out, leaves, direction.to(out.dtype), allow_unused=True)
    return out.detach(), [torch.zeros(1) if g is None else g for g in grads]


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.double().flatten() for part in parts])


def cast(parts: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    q, k, v, x = parts
    q_cast = q.to(dtype)
    return q_cast, q_cast if k is q else k.to(dtype), v.to(dtype), x.to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("tie_qk", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_lrsa_equals_its_definition_in_float64(backend, normalizer, tie_qk, padded):
    x = tokens("offset", 3, 17, 24)
    q, k, v = projections(x, 3, tie_qk=tie_qk)
    mask = None
    if padded:
        mask = torch.zeros(3, 17, dtype=torch.bool)
        mask[0, 9:], mask[1, :4] = True, True
    settings = {"alpha": 100.0, "normalizer": normalizer, "floor": 2.0, "key_padding_mask": mask}
    settings["length_free"] = normalizer != "m" and tie_qk
    expected, expected_grads = gradients(
        lambda *parts: definition.lrsa(*parts, **settings), q, k, v, x
    )

    def ours(*parts: Tensor) -> Tensor:
        out = lrsa_attention(*parts, **settings, backend=backend)
        return out if mask is None else out.masked_fill(mask[:, None, :, None], 0)

    actual, grads = gradients(ours, q, k, v, x)
    assert_close(actual, expected, TOLERANCE[torch.float64])
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert_close(grad, expected_grad, GRADIENT_TOLERANCE[torch.float64])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_tokens", [*LENGTHS, 1024])
@pytest.mark.parametrize("alpha", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_close_to_the_float64_definition(backend, num_tokens, alpha, kind):
    x = tokens(kind, 1, num_tokens, 8 if num_tokens == 1024 else 32)
    parts = cast((*projections(x, 1, tie_qk=True), x), torch.float32)
    expected, expected_grads = gradients(
        lambda *p: definition.lrsa(*p, alpha=alpha), *cast(parts, torch.float64)
    )
    actual, grads = gradients(lambda *p: lrsa_attention(*p, alpha=alpha, backend=backend), *parts)
    assert_close(actual, expected, TOLERANCE[torch.float32])
    if kind in ("equal", "zero"):
        # At a tie the gradient is one of many: it must be finite, and the backends must agree.
        assert all(grad.isfinite().all() for grad in grads)
        return
    # Where a softmax saturates its gradient vanishes and only rounding is left: the scale is that of
    # all gradients together.
    assert_close(_flat(grads), _flat(expected_grads), GRADIENT_TOLERANCE[torch.float32])


@pytest.mark.parametrize("tie_qk", [True, False])
@pytest.mark.parametrize("num_tokens", LENGTHS)
@pytest.mark.parametrize("alpha", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_errs_at_most_twice_as_much_as_rounding_the_inputs_does(
    tie_qk, num_tokens, alpha, kind
):
    """The yardstick: the float64 definition on rounded q, k, v, its result rounded for storage.

    Gradients, all of them as one vector, get a factor of four: fused kernels round the weights and the
    score gradients to 16 bits too (torch's dot-product attention reaches 3.9 on the same tokens).
    """
    x = tokens(kind, 2, num_tokens, 64)
    exact = (*projections(x, 2, tie_qk=tie_qk), x)
    rounded = cast(exact, torch.bfloat16)
    expected, expected_grads = gradients(lambda *p: definition.lrsa(*p, alpha=alpha), *exact)
    yardstick, yardstick_grads = gradients(
        lambda *p: definition.lrsa(*p, alpha=alpha), *cast(rounded, torch.float64)
    )
    actual, grads = gradients(lambda *p: lrsa_attention(*p, alpha=alpha), *rounded)
    yardstick_error = torch.linalg.vector_norm(yardstick.bfloat16().double() - expected)
    assert torch.linalg.vector_norm(actual.double() - expected) <= 2 * yardstick_error + 1e-12
    assert all(grad.isfinite().all() for grad in grads)
    if kind in ("equal", "zero"):
        return  # the gradient at a tie is one of many
    yardstick_error = torch.linalg.vector_norm(
        _flat([grad.bfloat16() for grad in yardstick_grads]) - _flat(expected_grads)
    )
    error = torch.linalg.vector_norm(_flat(grads) - _flat(expected_grads))
    rounding_alone = 1e-6 * torch.linalg.vector_norm(_flat(expected_grads))
    assert error <= 4 * yardstick_error + rounding_alone


@pytest.mark.parametrize("kind", ["equal", "zero"])
@pytest.mark.parametrize("num_tokens", [1, 2, 17])
def test_backends_agree_on_the_gradient_at_ties_and_at_zero(kind, num_tokens):
    x = tokens(kind, 2, num_tokens, 16)
    q, k, v = projections(x, 2, tie_qk=True)
    results = [
        gradients(lambda *p, name=name: lrsa_attention(*p, alpha=100.0, backend=name), q, k, v, x)
        for name in BACKENDS
    ]
    for first, second in zip(results[0][1], results[1][1], strict=True):
        assert first.isfinite().all()
        assert (first - second).abs().max() <= 1e-10


@settings(max_examples=25)
@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 10**6), alpha=st.floats(0.1, 1000))
def test_lrsa_is_homogeneous_of_degree_one(scale, seed, alpha):
    x = tokens("gauss", 1, 7, 12, seed=seed)
    layer = LRSA(12, 3, alpha=alpha, proj_bias=False, eps=1e-300).double()
    assert_close(layer(scale * x), scale * layer(x), 1e-9)


def test_the_jacobian_does_not_depend_on_the_scale_of_the_input():
    layer = LRSA(6, 2, proj_bias=False, eps=1e-300, backend="reference").double()
    x = tokens("gauss", 1, 4, 6)
    at_one = torch.autograd.functional.jacobian(layer, x)
    at_hundred = torch.autograd.functional.jacobian(layer, 100 * x)
    assert_close(at_hundred, at_one, 1e-9)


def test_permuting_the_tokens_permutes_the_output():
    layer = LRSA(12, 3).double()
    x = tokens("gauss", 2, 11, 12)
    order = torch.randperm(11)
    assert_close(layer(x[:, order]), layer(x)[:, order], 1e-12)


def test_a_sample_is_the_same_alone_and_in_a_batch():
    layer = LRSA(12, 3).double()
    x = tokens("gauss", 4, 11, 12)
    x[0] *= 1e3
    alone = torch.cat([layer(sample.unsqueeze(0)) for sample in x])
    assert_close(layer(x), alone, 1e-12)


def test_four_copies_of_every_token_need_twice_the_alpha_unless_length_free():
    x = tokens("gauss", 1, 8, 12)
    copies = x.repeat(1, 4, 1)

    def run(x: Tensor, alpha: float, **settings: bool) -> Tensor:
        q, k, v = projections(x, 3, tie_qk=True)
        return lrsa_attention(q, k, v, x, alpha=alpha, **settings)

    assert_close(run(copies, 200.0)[:, :, :8], run(x, 100.0), 1e-10)
    assert relative_error(run(copies, 100.0)[:, :, :8], run(x, 100.0)) > 1e-3
    assert_close(run(copies, 9.0, length_free=True)[:, :, :8], run(x, 9.0, length_free=True), 1e-10)
    assert_close(run(x, 9.0, length_free=True), run(x, 9.0 * 8**0.5), 1e-12)


def test_the_largest_possible_token_norm_and_the_head_norm_make_the_coefficient():
    x = tokens("gauss", 2, 5, 6)
    q, k, _ = projections(x, 2, tie_qk=False)
    found = lrsa_coefficient(q, k, x, alpha=torch.tensor([3.0, 7.0], dtype=torch.float64))
    for b in range(2):
        for h, alpha in enumerate((3.0, 7.0)):
            right = alpha / (q[b, h].norm() * max(token.norm() for token in x[b]))
            assert_close(found[b, h], right, 1e-9)


def test_only_the_largest_token_pulls_on_the_coefficient_the_first_of_equal_ones():
    x = torch.tensor([[[3.0, 4.0], [1.0, 0.0], [0.0, 5.0]]], requires_grad=True)
    q = torch.ones(1, 1, 3, 2)
    coefficient = lrsa_coefficient(q, q, x, alpha=6.0)
    (grad,) = torch.autograd.grad(coefficient.sum(), x)
    norm_q = 6**0.5
    assert_close(coefficient, torch.tensor([[6.0 / (norm_q * 5.0)]]), 1e-6)
    # The derivative of 6 / (norm_q m) at m = 5 along the unit vector of the first token.
    expected = torch.zeros_like(x)
    expected[0, 0] = -6.0 / (norm_q * 25.0) * torch.tensor([0.6, 0.8])
    assert_close(grad, expected, 1e-6)


def test_norms_and_coefficient_are_float32_under_autocast():
    layer = LRSA(64, 2)
    x = 50 + torch.randn(2, 9, 64)
    seen = {}
    with torch.autocast("cpu", torch.bfloat16):
        q, k, _ = layer.project(x)
        seen["coefficient"] = layer.coefficient(q, k, x)
        out = layer(x)
    assert q.dtype == out.dtype == torch.bfloat16
    assert seen["coefficient"].dtype == torch.float32
    right = lrsa_coefficient(q.double(), k.double(), x.double(), alpha=100.0)
    assert_close(seen["coefficient"], right, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_costs_no_more_than_sixteen_bit_inputs_do(backend):
    x = tokens("offset", 2, 65, 64)
    exact = (*projections(x, 2, tie_qk=True), x)
    expected = definition.lrsa(*exact, alpha=1000.0)
    yardstick = definition.lrsa(*cast(cast(exact, torch.bfloat16), torch.float64), alpha=1000.0)
    with torch.autocast("cpu", torch.bfloat16):
        actual = lrsa_attention(*cast(exact, torch.float32), alpha=1000.0, backend=backend)
    yardstick_error = torch.linalg.vector_norm(yardstick.bfloat16().double() - expected)
    assert torch.linalg.vector_norm(actual.double() - expected) <= 2 * yardstick_error


def test_a_learnable_alpha_starts_at_alpha_stays_positive_and_learns():
    layer = LRSA(12, 3, alpha=20.0, learnable_alpha=True)
    x = torch.randn(2, 5, 12)
    assert_close(layer(x), _with_weights_of(layer, LRSA(12, 3, alpha=20.0))(x), 1e-6)
    layer(x).square().sum().backward()
    assert layer.log_alpha_factor is not None
    assert layer.log_alpha_factor.grad is not None
    assert (layer.log_alpha_factor.grad != 0).all()
    with torch.no_grad():
        layer.log_alpha_factor.fill_(-50.0)
    assert (layer.effective_alpha() > 0).all()


def _with_weights_of(source: LRSA, target: LRSA) -> LRSA:
    target.load_state_dict(
        {name: t for name, t in source.state_dict().items() if name != "log_alpha_factor"}
    )
    return target


def test_alpha_travels_in_the_state_dict():
    source, target = LRSA(12, 3, alpha=7.0), LRSA(12, 3, alpha=100.0)
    source.alpha[1] = 9.0
    target.load_state_dict(source.state_dict())
    assert target.alpha.tolist() == [7.0, 9.0, 7.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, r"num_heads \(5\) must divide dim \(12\)"),
        ({"alpha": 0.0}, r"alpha \(0.0\) must be positive"),
        ({"alpha": float("inf")}, r"alpha \(inf\) must be positive and finite"),
        ({"alpha": float("nan")}, r"alpha \(nan\) must be positive"),
        ({"normalizer": "papers"}, "must be one of paper, floor, symmetric, m"),
        ({"normalizer": "m", "length_free": True}, "has no meaning with normalizer 'm'"),
        ({"eps": 0.0}, r"eps \(0.0\) must be positive"),
        ({"floor": -1.0}, r"floor \(-1.0\) must be positive"),
        ({"attn_drop": 1.0}, r"attn_drop \(1.0\) must be at least 0 and below 1"),
        ({"backend": "flash"}, "must be one of auto, reference, sdpa"),
        ({"qk_norm": True}, "qk_norm"),
        ({"scale_norm": True}, "scale_norm"),
    ],
)
def test_settings_that_cannot_work_raise_before_any_compute(changes, message):
    with pytest.raises(ConfigError, match=message):
        LRSA(12, **{"num_heads": 3, **changes})


@pytest.mark.unhooked
def test_wrong_shapes_and_masks_raise_with_the_rule():
    x = torch.randn(2, 5, 12)
    q, k, v = projections(x, 3, tie_qk=False)
    with pytest.raises(ConfigError, match="must be the tokens"):
        lrsa_attention(q, k, v, x[:, :4], alpha=1.0)
    for alone in (x[:1], x[:, :1], x[0]):  # torch would broadcast them
        with pytest.raises(ConfigError, match="must be the tokens"):
            lrsa_attention(q, k, v, alone, alpha=1.0)
        with pytest.raises(ConfigError, match="must be the tokens"):
            lrsa_coefficient(q, k, alone, alpha=1.0)
    with pytest.raises(ConfigError, match="one shape"):
        lrsa_coefficient(q, k[:1], x, alpha=1.0, normalizer="symmetric")
    with pytest.raises(ConfigError, match="one shape"):
        lrsa_attention(q, k[:, :, :3], v, x, alpha=1.0)
    with pytest.raises(ConfigError, match="must be \\(batch, tokens, dim\\) with dim 12"):
        LRSA(12, 3)(x[0])
    assert LRSA(12, 3)(x[:0]).shape == (0, 5, 12)
    with pytest.raises(ConfigError, match="must be bool"):
        LRSA(12, 3)(x, key_padding_mask=torch.ones(2, 5))
    with pytest.raises(ConfigError, match=r"must be \(batch, tokens\) = \(2, 5\)"):
        LRSA(12, 3)(x, key_padding_mask=torch.ones(5, 2, dtype=torch.bool))


@pytest.mark.parametrize(
    "settings",
    [
        {"normalizer": "paper"},
        {"normalizer": "symmetric"},
        {"normalizer": "paper", "length_free": True},
        {"normalizer": "floor", "floor": 1e-3},
        {"normalizer": "floor", "floor": 1e3},
    ],
    ids=str,
)
def test_the_slope_of_tied_queries_is_the_gradient_that_their_norm_gives_them(settings):
    settings = {"eps": 1e-10, "floor": 0.1, "length_free": False, **settings}
    x = tokens("gauss", 2, 7, 8)
    q = projections(x, 2, tie_qk=True)[0].requires_grad_()
    alpha = torch.tensor([3.0, 5.0], dtype=torch.float64)
    expected = lrsa_coefficient(q, q, x, alpha=alpha, **settings)
    (grad,) = torch.autograd.grad(expected.sum(), q)
    squares = q.detach().square().sum(-1)
    coefficient, slope = tied_coefficient(squares, x, CoefficientSettings(alpha=alpha, **settings))
    assert_close(coefficient, expected.detach(), 1e-12)
    assert_close(slope[..., None, None] * q.detach(), grad, 1e-12)


@pytest.mark.parametrize("square", [0.0, 1e-38, 1e-44])
def test_the_slope_of_nearly_blank_queries_is_finite(square):
    squares = torch.full((1, 1, 3), square)
    settings = CoefficientSettings(100.0, "paper", 1e-10, 0.1, False)
    slope = tied_coefficient(squares, torch.ones(1, 3, 4), settings)[1]
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_autocast_leaves_float64_alone(backend):
    module = LRSA(16, 2).double()
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with use_backend(module, backend):
        expected = module(x)
        with torch.autocast("cpu", torch.bfloat16):
            found = module(x)
    assert found.dtype == torch.float64
    assert_close(found, expected, 1e-12)


def test_a_large_alpha_survives_16_bits():
    module = LRSA(8, 2, alpha=1e5).half()
    assert module.alpha.dtype == torch.float32
    assert module.alpha.tolist() == [1e5, 1e5]
    assert module.qkv.weight.dtype == torch.float16
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).half()
    assert module.attention_map(x).isfinite().all()
    for back in (LRSA(8, 2, alpha=1e5).double().float(), LRSA(8, 2, alpha=1e5).double().half()):
        assert back.alpha.dtype == torch.float32
        assert back.alpha.tolist() == [1e5, 1e5]


def test_no_tokens_give_no_output():
    for normalizer in ("paper", "floor", "symmetric", "m"):
        module = LRSA(8, 2, normalizer=normalizer)
        assert module(torch.zeros(2, 0, 8)).shape == (2, 0, 8)
        assert module(torch.zeros(2, 0, 8, requires_grad=True)).shape == (2, 0, 8)
        narrow = module.bfloat16()
        assert narrow(torch.zeros(2, 0, 8, dtype=torch.bfloat16)).shape == (2, 0, 8)
