"""Inputs that break what the paper prints, and that the sound bounds survive. Tokens are rows."""

import math

import pytest
import torch
from torch.func import jacrev

from lrformer.lipschitz import attention, lrsa, maps, printed, spectral_norm
from lrformer.lipschitz.norms import frobenius_operator_norm

F64 = torch.float64


def tensor(rows):
    return torch.tensor(rows, dtype=F64)


def split_weights():
    """Return W_Q and W_K that read different coordinates of three."""
    w_q, w_k = torch.zeros(3, 2, dtype=F64), torch.zeros(3, 2, dtype=F64)
    w_q[0, 0] = w_k[1, 1] = 1
    return w_q, w_k


def largest_weight_derivative(x, w_q, w_k, alpha):
    """Return max over i, j, k of the largest entry of dP_ij / dx_k, and of its Euclidean norm."""
    jacobian = jacrev(lambda y: maps.lrsa_weights(y, w_q, w_k, alpha=alpha))(x)
    return float(jacobian.abs().max()), float(torch.linalg.vector_norm(jacobian, dim=-1).max())


def jacobian_of_lrsa(x, w_q, w_k, w_v, alpha, **settings):
    return jacrev(lambda y: maps.lrsa(y, w_q, w_k, w_v, alpha=alpha, **settings))(x)


@pytest.mark.parametrize(("eps", "ratio"), [(1e-3, 27.95), (1e-4, 279.5)])
def test_the_printed_constant_fails_near_the_kernel_and_theorem_7_holds(eps, ratio):
    w_q, w_k = split_weights()
    x = tensor([[eps, 1, 0], [0, -1, 0.5]])
    entry, euclidean = largest_weight_derivative(x, w_q, w_k, 1.0)
    x_norm = float(torch.linalg.vector_norm(x))
    claimed = printed.lrsa_constant(w_q, w_k, alpha=1.0, x_norm=x_norm)
    assert entry / claimed.value == pytest.approx(ratio, rel=1e-3)
    q_norm = float(torch.linalg.vector_norm(x @ w_q))
    assert euclidean <= attention.entrywise(1.0, 1.0, alpha=1.0, q_norm=q_norm, n=2)


def test_the_printed_constant_fails_for_generic_weights():
    generator = torch.Generator().manual_seed(0)
    e, d, alpha, eps = 8, 4, 100.0, 1e-6
    w_q, w_k = (torch.randn(e, d, dtype=F64, generator=generator) / e**0.5 for _ in range(2))
    u = torch.linalg.svd(w_q).U[:, -1]
    k = u @ w_k
    y = torch.linalg.svd((k @ w_k.T)[None]).Vh[-1]
    x = torch.stack([u + eps * y, -u])
    entry, euclidean = largest_weight_derivative(x, w_q, w_k, alpha)
    x_norm = float(torch.linalg.vector_norm(x))
    assert entry > 10 * printed.lrsa_constant(w_q, w_k, alpha=alpha, x_norm=x_norm).value
    sigmas = (spectral_norm(w_q), spectral_norm(w_k))
    q_norm = float(torch.linalg.vector_norm(x @ w_q))
    assert euclidean <= attention.entrywise(*sigmas, alpha=alpha, q_norm=q_norm, n=2)


def test_the_other_reading_of_the_printed_constant_fails_by_scaling_the_weights():
    w_q, w_k = split_weights()
    x = tensor([[0.01, 1, 0], [0, -1, 0.5]])
    entry, _ = largest_weight_derivative(x, 100 * w_q, 100 * w_k, 1.0)
    x_norm = float(torch.linalg.vector_norm(x))
    claimed = printed.lrsa_constant(
        100 * w_q, 100 * w_k, alpha=1.0, x_norm=x_norm, is_square_on_all=True
    )
    assert entry > 10 * claimed.value


@pytest.mark.parametrize(("alpha", "ratio"), [(1e-3, 9.3), (1e-4, 93.0)])
def test_the_dropped_derivative_breaks_the_printed_bound_at_small_alpha(alpha, ratio):
    w_q, w_k = split_weights()
    x = tensor([[0.487 * alpha, 1, 0], [0, 0.5, 0]])
    entry, euclidean = largest_weight_derivative(x, w_q, w_k, alpha)
    q_norm = float(torch.linalg.vector_norm(x @ w_q))
    claimed = printed.weight_derivative(w_q, w_k, alpha=alpha, q_norm=q_norm)
    assert entry / claimed.value == pytest.approx(ratio, rel=0.02)
    sound = attention.entrywise(1.0, 1.0, alpha=alpha, q_norm=q_norm, n=2)
    assert 0.9 <= euclidean / sound <= 1


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_the_printed_score_derivative_fails_at_the_alpha_of_the_paper(eps):
    w_q, w_k = split_weights()
    x = tensor([[eps, 1, 0], [0, 0.5, 0]])

    def scores(y):
        q, k = y @ w_q, y @ w_k
        scale = maps.lrsa_scale(q, k, y, normalizer="paper")
        return -100 * maps.squared_distances(q, k) / scale

    found = float(torch.linalg.vector_norm(jacrev(scores)(x), dim=-1).max())
    q_norm = float(torch.linalg.vector_norm(x @ w_q))
    claimed = printed.score_derivative(w_q, w_k, alpha=100.0, q_norm=q_norm)
    assert found > 0.05 / eps * claimed.value


def test_the_printed_constant_vanishes_with_scale_while_the_jacobian_does_not():
    generator = torch.Generator().manual_seed(0)
    x, w, w_v = (torch.randn(4, 4, dtype=F64, generator=generator) for _ in range(3))
    norms, claims = [], []
    for scale in (1.0, 1e2, 1e4):
        norms.append(float(frobenius_operator_norm(jacobian_of_lrsa(scale * x, w, w, w_v, 10.0))))
        x_norm = scale * float(torch.linalg.vector_norm(x))
        claims.append(printed.lrsa_constant(w, w, alpha=10.0, x_norm=x_norm).value)
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-9)
    assert claims[2] == pytest.approx(1e-4 * claims[0])
    assert norms[2] > claims[2]


def test_untied_lrsa_jumps_where_the_queries_vanish():
    w_q, w_k = split_weights()
    eps, identity = 1e-6, torch.eye(3, dtype=F64)
    images = [
        maps.lrsa(tensor([[eps, 1 + s * eps, 0], [0, -1, 0]]), w_q, w_k, identity, alpha=100.0)
        for s in (1, -1)
    ]
    assert float(torch.linalg.vector_norm(images[0] - images[1])) == pytest.approx(
        2 * math.sqrt(2), abs=1e-2
    )


def test_the_jacobian_explodes_when_untied_and_not_when_tied():
    w_q, w_k, identity = tensor([[1], [0]]), tensor([[0], [1]]), torch.eye(2, dtype=F64)
    untied, tied = [], []
    for eps in (1e-1, 1e-2, 1e-3, 1e-4):
        x = tensor([[eps, 1], [-eps, -1]])
        untied.append(float(frobenius_operator_norm(jacobian_of_lrsa(x, w_q, w_k, identity, 1.0))))
        tied.append(float(frobenius_operator_norm(jacobian_of_lrsa(x, w_q, w_q, identity, 1.0))))
    assert untied == pytest.approx([3.8, 41, 421, 4215], rel=0.02)
    assert all(1.38 <= size <= 1.4143 for size in tied)


@pytest.mark.parametrize(
    ("settings", "bracket"),
    [
        (
            {"normalizer": "floor", "floor": 0.2},
            lambda: lrsa.lrsa_floor(1.0, 1.0, alpha=1.0, floor=0.2, n=2, norm="F"),
        ),
        (
            {"normalizer": "symmetric"},
            lambda: lrsa.lrsa_symmetric(1.0, 1.0, 1.0, alpha=1.0, n=2, norm="F"),
        ),
    ],
)
def test_a_floor_or_the_symmetric_normalizer_repairs_the_jump(settings, bracket):
    w_q, w_k, identity = tensor([[1], [0]]), tensor([[0], [1]]), torch.eye(2, dtype=F64)
    for eps in (1e-1, 1e-2, 1e-3, 1e-4):
        x = tensor([[eps, 1], [-eps, -1]])
        jacobian = jacobian_of_lrsa(x, w_q, w_k, identity, 1.0, **settings)
        assert float(frobenius_operator_norm(jacobian)) <= bracket()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_printed_layer_bound_fails_when_the_values_are_large(seed):
    generator = torch.Generator().manual_seed(seed)
    e, n, eps, alpha, size = 4, 3, 1e-5, 100.0, 1e4
    w, w_1, w_2 = (torch.randn(e, e, dtype=F64, generator=generator) / 2 for _ in range(3))
    x = torch.full((n, e), 100.0, dtype=F64)
    x = x + 1e-9 * torch.randn(n, e, dtype=F64, generator=generator)

    def layer(y):
        values = size * torch.eye(e, dtype=F64)
        z = torch.nn.functional.layer_norm(
            y + maps.lrsa(y, w, w, values, alpha=alpha), (e,), eps=eps
        )
        hidden = torch.nn.functional.gelu(z @ w_1) @ w_2
        return torch.nn.functional.layer_norm(z + hidden, (e,), eps=eps)

    found = float(frobenius_operator_norm(jacrev(layer)(x)))
    eta = printed.layer_norm(torch.ones(e), eps=eps).value
    l_lrsa = printed.lrsa_constant(w, w, alpha=alpha, x_norm=float(torch.linalg.vector_norm(x)))
    l_mlp = printed.mlp(spectral_norm(w_1), spectral_norm(w_2)).value
    assert found > 3 * printed.layer(eta, eta, l_lrsa.value, l_mlp).value


def test_equal_tokens_lose_all_differences_and_a_residual_can_send_them_to_zero():
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 3, dtype=F64, generator=generator)
    x = torch.randn(1, 3, dtype=F64, generator=generator).expand(5, 3).contiguous()
    minus = -torch.eye(3, dtype=F64)
    jacobian = jacobian_of_lrsa(x, w, w, minus, 10.0).reshape(15, 15)
    assert int(torch.linalg.matrix_rank(jacobian, atol=1e-10)) <= 3
    assert torch.allclose(x + maps.lrsa(x, w, w, minus, alpha=10.0), torch.zeros_like(x))


def test_a_lipschitz_classifier_can_be_as_sure_as_it_likes_far_away():
    confidences = [float(torch.softmax(tensor([r, 0.0]), 0).max()) for r in (1.0, 10.0, 40.0)]
    assert confidences == sorted(confidences)
    assert confidences[-1] > 1 - 1e-15


def test_norms_over_batch_padding_or_future_change_outputs_that_must_not_change():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, dtype=F64, generator=generator)
    w = torch.randn(3, 3, dtype=F64, generator=generator)
    own = maps.lrsa(x, w, w, w, alpha=10.0)

    def with_norms_over(tokens):
        scale = maps.lrsa_scale(tokens @ w, tokens @ w, tokens, normalizer="paper")
        scores = -10.0 * maps.squared_distances(x @ w, x @ w) / scale
        return torch.softmax(scores, -1) @ (x @ w)

    assert torch.allclose(with_norms_over(x), own)
    other = 5 * torch.randn(4, 3, dtype=F64, generator=generator)
    assert float((with_norms_over(torch.cat([x, other])) - own).abs().max()) > 0.1


def test_a_key_bias_cancels_in_the_dot_product_and_not_in_lrsa():
    generator = torch.Generator().manual_seed(0)
    x, w_q, w_k = (torch.randn(4, 4, dtype=F64, generator=generator) for _ in range(3))
    bias = torch.randn(4, dtype=F64, generator=generator)

    def dot(b):
        return torch.softmax(x @ w_q @ (x @ w_k + b).T, -1)

    def distance(b):
        q, k = x @ w_q, x @ w_k + b
        scale = maps.lrsa_scale(q, k, x, normalizer="paper")
        return torch.softmax(-10.0 * maps.squared_distances(q, k) / scale, -1)

    assert torch.allclose(dot(bias), dot(0 * bias), atol=1e-12)
    assert float((distance(bias) - distance(0 * bias)).abs().max()) > 0.05


@pytest.mark.parametrize(("n", "slope"), [(2, 1.41), (5, 0.74), (17, 0.56), (33, 0.53)])
def test_the_constant_of_tied_lrsa_does_grow_like_alpha(n, slope):
    alpha = 100.0
    x = tensor([[math.log(n) / alpha, 1, 0]] + [[0, -1, 0]] * (n - 1))
    w = tensor([[1], [0], [0]])
    size = float(frobenius_operator_norm(jacobian_of_lrsa(x, w, w, torch.eye(3, dtype=F64), alpha)))
    assert size == pytest.approx(slope * alpha, rel=0.05)
    assert size <= lrsa.lrsa_tied(1.0, alpha=alpha, n=n, norm="F")


def test_dot_product_attention_has_no_constant_on_all_of_space():
    identity = torch.eye(2, dtype=F64)
    sizes = []
    for radius in (1.0, 10.0, 100.0):
        x = tensor([[0, 0], [radius, 0], [-radius, 0]])
        jacobian = jacrev(lambda y: maps.dot_product(y, identity, identity, identity))(x)
        sizes.append(float(frobenius_operator_norm(jacobian)))
    assert sizes[1] > 20 * sizes[0]
    assert sizes[2] > 50 * sizes[1]


def test_l2_scores_with_free_values_have_no_constant_either():
    w = tensor([[1], [0]])
    sizes = []
    for radius in (1e1, 1e3):
        x = tensor([[0, radius], [0, -radius], [1, 0]])

        def free_values(y):
            q = y @ w
            return torch.softmax(-maps.squared_distances(q, q), -1) @ y

        sizes.append(float(frobenius_operator_norm(jacrev(free_values)(x))))
    assert sizes[1] > 50 * sizes[0]


def test_printed_gelu_second_derivative_has_the_wrong_root():
    x = tensor(math.sqrt(2)).requires_grad_()
    gelu = torch.nn.functional.gelu(x)
    first = torch.autograd.grad(gelu, x, create_graph=True)[0]
    second = torch.autograd.grad(first, x)[0]
    assert float(second) == pytest.approx(0, abs=1e-12)
    assert float(printed.gelu_second_derivative(x.detach())) > 0.05


def test_the_normalizer_of_dasoulas_bounds_scores_by_alpha():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, dtype=F64, generator=generator)
    scores = 100 * torch.randn(5, 5, dtype=F64, generator=generator)
    scaled = printed.dasoulas_scores(scores, x, alpha=2.0, score_lipschitz=0.0)
    assert float(torch.linalg.vector_norm(scaled.abs().amax(-1))) == pytest.approx(2.0)
    weak = printed.dasoulas_scores(1e-6 * scores, x, alpha=2.0, score_lipschitz=1.0)
    largest = float(torch.linalg.vector_norm(x, dim=-1).max())
    assert torch.allclose(weak, 2e-6 * scores / largest)


def test_every_printed_formula_says_that_it_is_printed():
    w = torch.eye(2)
    bounds = [
        printed.score_derivative(w, w, alpha=1.0, q_norm=1.0),
        printed.weight_derivative(w, w, alpha=1.0, q_norm=1.0),
        printed.lrsa_constant(w, w, alpha=1.0, x_norm=0.0),
        printed.layer_norm(torch.ones(3), eps=1e-6),
        printed.mlp(1.0, 1.0),
        printed.layer(1.0, 1.0, 1.0, 1.0),
    ]
    assert {bound.kind for bound in bounds} == {"printed"}
    assert all("printed" in bound.reason for bound in bounds)
