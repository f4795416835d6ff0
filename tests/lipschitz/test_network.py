import math

import pytest
import torch
from torch.func import jacrev

from lrformer.core import ConfigError
from lrformer.lipschitz import (
    Bound,
    Stage,
    bi_lipschitz,
    certified_radius,
    network,
    random_feature_head,
    random_feature_logit_bound,
)
from lrformer.lipschitz.network import (
    post_norm_block,
    pre_norm_block,
    radius_of_margin,
    residual,
)


def stage(name, frobenius, max_token):
    return Stage(name=name, frobenius=frobenius, max_token=max_token)


def test_the_chain_changes_norm_once_and_never_back():
    stages = [stage("a", 2.0, 10.0), stage("b", 10.0, 3.0), stage("c", 4.0, 100.0)]
    chain = network(stages, sigma_head=2.0)
    products = [10 * 3 * 100, 2 * 3 * 100, 2 * 10 * 100, 2 * 10 * 4]
    assert chain.bound.value == pytest.approx(2 * min(products))
    assert chain.switch == 3


def test_a_mean_pool_helps_only_where_the_chain_stayed_in_the_frobenius_norm():
    stages = [stage("a", 2.0, 1.0)]
    assert network(stages, mean_pooled_tokens=16).bound.value == pytest.approx(0.5)
    assert network(stages, mean_pooled_tokens=2).bound.value == pytest.approx(1.0)
    assert network(stages).bound.value == pytest.approx(1.0)


def test_a_stage_without_a_constant_is_named_and_an_overflow_is_called_vacuous():
    broken = network([stage("fine", 1.0, 1.0), stage("blocks.3.attn", math.inf, math.inf)])
    assert broken.bound.value == math.inf
    assert "blocks.3.attn" in broken.bound.reason
    huge = network([stage("norm", 1e200, 1e200)] * 2)
    assert huge.bound.value == math.inf
    assert "vacuous" in huge.bound.reason
    assert huge.log10 == pytest.approx(400)


def test_a_stage_may_lack_one_norm():
    chain = network([stage("a", 2.0, 2.0), stage("b", math.inf, 3.0)])
    assert chain.bound.value == pytest.approx(6.0)
    assert chain.switch <= 1


def test_blocks_compose_as_their_formulas_say():
    assert residual(0.5) == 1.5
    assert post_norm_block(2.0, 3.0, 5.0, 7.0) == 2 * 5 * (1 + 3) * (1 + 7)
    assert pre_norm_block(2.0, 3.0, 5.0, 7.0) == (1 + 2 * 3) * (1 + 5 * 7)


def test_random_feature_head_keeps_to_its_constant_and_its_logit_bound():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 5, dtype=torch.float64, generator=generator)
    beta = torch.randn(64, 3, dtype=torch.float64, generator=generator)
    phase = 2 * math.pi * torch.rand(64, dtype=torch.float64, generator=generator)

    def head(x):
        return math.sqrt(2 / 64) * torch.cos(weight @ x + phase) @ beta

    for scale in (0.1, 1.0, 100.0):
        x = scale * torch.randn(5, dtype=torch.float64, generator=generator)
        size = float(torch.linalg.matrix_norm(jacrev(head)(x), ord=2))
        assert size <= random_feature_head(weight, beta)
        assert bool((head(x).abs() <= random_feature_logit_bound(beta)).all())


def test_a_certified_radius_is_safe_and_sharp_for_a_linear_classifier():
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    x = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    radius = float(certified_radius(x @ weight, constant=1.0))
    direction = torch.tensor([[-1.0, 1.0]], dtype=torch.float64) / math.sqrt(2)
    assert int((x + 0.999 * radius * direction).argmax()) == 0
    assert int((x + 1.001 * radius * direction).argmax()) == 1


def test_an_infinite_constant_gives_radius_zero():
    assert float(certified_radius(torch.tensor([[3.0, 1.0]]), constant=math.inf)) == 0


def test_residual_chains_multiply_and_lose_the_lower_constant_at_one():
    assert bi_lipschitz([0.5, 0.1]) == pytest.approx((0.45, 1.65))
    assert bi_lipschitz([1.2, 0.1])[0] == 0


def test_a_bound_refuses_nonsense_and_unexplained_infinity():
    with pytest.raises(ConfigError, match="must be a number"):
        Bound(value=-1.0, norm="F")
    with pytest.raises(ConfigError, match="must come with a reason"):
        Bound(value=math.inf, norm="F")
    assert "sound" in str(Bound(value=2.0, norm="max"))


def test_zero_elsewhere_does_not_make_up_for_a_stage_without_a_bound():
    chain = network([stage("a", math.inf, math.inf), stage("b", 0.0, 0.0)], sigma_head=1.0)
    assert chain.bound.value == math.inf
    assert network([stage("a", math.inf, math.inf)], sigma_head=0.0).bound.value == math.inf
    assert network([stage("a", 0.0, 1.0)], sigma_head=math.inf).bound.value == math.inf
    assert network([stage("a", 0.0, 1.0)], sigma_head=1.0).bound.value == 0
    # Zero times infinity inside a stage.
    assert network([stage("a", math.nan, math.nan)]).bound.value == math.inf
    assert network([stage("a", math.nan, 2.0)]).bound.value == pytest.approx(2.0)


def test_without_a_margin_no_radius_is_certified_even_by_a_constant_of_zero():
    logits = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    assert certified_radius(logits, constant=0.0).tolist() == [0.0, math.inf]


@pytest.mark.parametrize("shape", [(2, 1), (2,), (2, 4, 3)])
def test_what_is_no_row_of_two_logits_has_no_margin(shape):
    with pytest.raises(ConfigError, match="at least two classes"):
        certified_radius(torch.zeros(shape), constant=1.0)


def test_margins_may_have_a_constant_each():
    margin, constant = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, math.inf, 3.0])
    expected = [0.0, math.inf, 0.0, 1 / math.sqrt(2)]
    assert radius_of_margin(margin, constant=constant).tolist() == pytest.approx(expected)
