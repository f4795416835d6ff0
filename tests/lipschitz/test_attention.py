"""Theorem 14, step by step: each inequality of the proof holds, and most are attained."""

import math

import pytest
import torch
from torch.func import jacrev

from lrformer.core import ConfigError
from lrformer.lipschitz.attention import (
    anchored_center,
    anchored_l2_attention,
    centered_anchored_l2_attention,
)
from lrformer.lipschitz.constants import anchored_energy, lambert_w
from lrformer.lipschitz.maps import squared_distances
from lrformer.lipschitz.norms import frobenius_operator_norm

F64 = torch.float64


def draw(*shape, seed=0):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def priors(n, seed=0):
    """Return rows that sum to one: spread out, nearly without self weight, sparse, and a star."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(n, n, dtype=F64, generator=generator) + 0.1
    faint = spread.clone().fill_diagonal_(1e-3)
    sparse = spread * (torch.rand(n, n, generator=generator) < 0.4) + torch.eye(n, dtype=F64)
    star = torch.eye(n, dtype=F64)
    star[:, 0] += 3
    return [prior / prior.sum(1, keepdim=True) for prior in (spread, faint, sparse, star)]


def weights(prior, q, temperature):
    return torch.softmax(prior.log() - temperature * squared_distances(q, q), dim=-1)


@pytest.mark.parametrize("odds", [1e-3, 1.0, 30.0])
def test_no_energies_have_a_larger_mean_than_the_solution_of_the_energy_equation(odds):
    others = odds * torch.tensor([0.2, 0.3, 0.5], dtype=F64)

    def mean(t):
        return float((others * t * (-t).exp()).sum() / (1 + (others * (-t).exp()).sum()))

    largest = max(mean(6 * torch.rand(3, dtype=F64)) for _ in range(2000))
    w = anchored_energy(odds)
    assert largest <= w
    assert mean(torch.full((3,), 1 + w, dtype=F64)) == pytest.approx(w, rel=1e-9)


@pytest.mark.parametrize("relative", [1e-4, 0.5, 20.0])
def test_one_entry_of_a_column_has_at_most_lamberts_energy(relative):
    s = torch.linspace(0, 20, 200_001, dtype=F64)
    found = float((relative * s / (s.exp() + relative)).max())
    assert found == pytest.approx(lambert_w(relative / math.e), rel=1e-6)
    assert found <= lambert_w(relative / math.e) * (1 + 1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rows_columns_and_the_diagonal_of_the_weights_stay_within_what_the_prior_allows(scale):
    n = 6
    for prior in priors(n):
        odds = ((1 - prior.diagonal()) / prior.diagonal()).max()
        relative = (prior / prior.diagonal()[:, None]).fill_diagonal_(0)
        for seed in range(20):
            q = scale * draw(n, 2, seed=seed)
            energy = squared_distances(q, q)
            p = weights(prior, q, 1.0)
            assert bool((p.diagonal() >= prior.diagonal() * (1 - 1e-12)).all())
            off = p - torch.diag(p.diagonal())
            assert bool((off <= relative / (1 + relative) + 1e-12).all())
            assert bool(((p * energy).sum(1) <= anchored_energy(float(odds)) + 1e-12).all())
            columns = torch.tensor(
                [sum(lambert_w(r / math.e) for r in column.tolist()) for column in relative.T]
            )
            assert bool(((p * energy).sum(0) <= columns + 1e-12).all())


@pytest.mark.parametrize("is_centered", [False, True])
def test_ascent_over_inputs_and_temperatures_keeps_to_the_constant_for_every_kind_of_prior(
    is_centered,
):
    for index, prior in enumerate(priors(4, seed=3)):
        center = anchored_center(prior) if is_centered else 0.0
        bound = (
            centered_anchored_l2_attention(prior)
            if is_centered
            else anchored_l2_attention(prior, norm="F")
        )
        q = draw(4, 2, seed=index).requires_grad_()
        log_temperature = torch.zeros((), dtype=F64, requires_grad=True)
        optimizer = torch.optim.Adam([q, log_temperature], lr=0.1)

        def image(y, prior=prior, log_temperature=log_temperature, center=center):
            return weights(prior, y, log_temperature.exp()) @ y - center * y

        for _ in range(25):
            size = frobenius_operator_norm(jacrev(image)(q))
            assert float(size.detach()) <= bound * (1 + 1e-9)
            optimizer.zero_grad()
            (-size.log()).backward()
            optimizer.step()


def test_far_pairs_keep_to_the_constant():
    for index, prior in enumerate(priors(5, seed=1)):
        center, bound = anchored_center(prior), centered_anchored_l2_attention(prior)

        def image(q, prior=prior, center=center):
            return weights(prior, q, 1.0) @ q - center * q

        for seed in range(60):
            q = 10 ** (seed % 5 - 2) * draw(5, 3, seed=100 * index + seed)
            flipped, together, alone = q.clone(), q.mean(0).expand(5, 3), q.clone()
            flipped[0] *= -1
            alone[2] *= 100
            for other in (flipped, together, alone, -q, 3 * q, q + 1e-5 * draw(5, 3, seed=seed)):
                assert float((image(q) - image(other)).norm()) <= bound * float((q - other).norm())


def test_heads_with_different_priors_share_the_largest_constant_at_one_center():
    heads = priors(4, seed=2)[:2]
    center = max(map(anchored_center, heads))
    bound = max(centered_anchored_l2_attention(head, center=center) for head in heads)
    assert bound > max(map(centered_anchored_l2_attention, heads)) - 1e-12

    def image(q):
        parts = [weights(head, q[:, [i]], 5.0) @ q[:, [i]] for i, head in enumerate(heads)]
        return torch.cat(parts, dim=1) - center * q

    for seed in range(50):
        q = draw(4, 2, seed=seed)
        assert float(frobenius_operator_norm(jacrev(image)(q))) <= bound


def test_a_center_away_from_the_middle_costs_its_distance():
    prior = priors(5)[0]
    middle, least = anchored_center(prior), float(prior.diagonal().min())
    tight = centered_anchored_l2_attention(prior)
    assert centered_anchored_l2_attention(prior, center=1.0) - tight == pytest.approx(1 - middle)
    assert centered_anchored_l2_attention(prior, center=0.0) - tight == pytest.approx(
        1 - (1 - least) / 2
    )


def test_one_token_is_left_as_it_is_and_its_centered_attention_vanishes():
    prior = torch.full((1, 1), 0.7)
    assert anchored_l2_attention(prior, norm="F") == 1
    assert anchored_center(prior) == 1
    assert centered_anchored_l2_attention(prior) == 0


def test_a_prior_must_be_square_and_see_itself():
    for prior in (1 - torch.eye(3), -torch.ones(2, 2), torch.ones(2, 3)):
        with pytest.raises(ConfigError, match="must be square"):
            centered_anchored_l2_attention(prior)
