import math

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError, NotFiniteError
from lrformer.heads import Predictive
from lrformer.methods import Temperature, fit_abstention, fit_temperature


def test_the_fitted_temperature_is_where_the_likelihood_is_best() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(4000, 5, generator=generator).double() * 2
    y = torch.multinomial(truth.softmax(-1), 1, generator=generator)[:, 0]
    overconfident = Predictive(logits=3 * truth)
    fitted = fit_temperature(overconfident, y)
    assert fitted.value == pytest.approx(3.0, rel=0.1)
    scaled = fitted(overconfident)

    def loss(temperature: float) -> float:
        logits = overconfident.logits / temperature
        return torch.nn.functional.cross_entropy(logits, y).item()

    grid = [fitted.value * factor for factor in (0.9, 0.99, 1.01, 1.1)]
    assert all(loss(fitted.value) < loss(other) for other in grid)
    assert torch.equal(scaled.logits.argmax(-1), overconfident.logits.argmax(-1))


def test_sampled_predictions_are_fitted_by_their_mean_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(3000, 4, generator=generator)
    y = torch.multinomial(truth.softmax(-1), 1, generator=generator)[:, 0]
    samples = 5 * (truth + 0.3 * torch.randn(6, 3000, 4, generator=generator))
    predictive = Predictive(logits=samples.mean(0), samples=samples)
    scaled = fit_temperature(predictive, y)(predictive)
    before = torch.nn.functional.nll_loss(predictive.log_probs, y)
    after = torch.nn.functional.nll_loss(scaled.log_probs, y)
    assert after < 0.8 * before
    assert torch.allclose(scaled.probs, (samples / (5 * 1.05)).softmax(-1).mean(0), atol=0.05)


def test_a_temperature_scales_what_has_the_units_of_logits() -> None:
    predictive = Predictive(
        logits=torch.ones(2, 3), variance=torch.full((2,), 4.0), distances=torch.ones(2, 3)
    )
    scaled = Temperature(value=2.0)(predictive)
    assert scaled.logits.unique().item() == 0.5
    assert scaled.variance is not None
    assert scaled.variance.unique().item() == 1.0
    assert scaled.distances is predictive.distances
    assert scaled.samples is None


def overconfident(num: int = 6000, unit: float = 1.0) -> tuple[Predictive, torch.Tensor]:
    """Return logits that are 1.5 sqrt(1 + 2 variance / unit) times too long, and labels of the right ones."""
    generator = torch.Generator().manual_seed(0)
    variance = 8 * torch.rand(num, generator=generator).double().square()
    truth = 2 * torch.randn(num, 5, generator=generator).double()
    y = torch.multinomial(truth.softmax(-1), 1, generator=generator)[:, 0]
    logits = truth * (1.5 * (1 + 2 * variance).sqrt()[:, None])
    return Predictive(logits=logits, variance=unit * variance), y


def loss_of(predictive: Predictive, y: torch.Tensor) -> float:
    return torch.nn.functional.nll_loss(predictive.log_probs, y).item()


@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_a_temperature_by_variance_doubts_where_the_variance_says_so(unit: float) -> None:
    validation, y = overconfident(unit=unit)
    plain, grown = fit_temperature(validation, y), fit_temperature(validation, y, by_variance=True)
    assert plain.variance_slope == 0
    # On a grid of factors of two.
    assert 1.2 < grown.variance_slope * unit < 3.2
    assert grown.value == pytest.approx(1.5, rel=0.25)
    assert loss_of(grown(validation), y) < loss_of(plain(validation), y) - 0.02
    others = [
        Temperature(value=grown.value * factor, variance_slope=grown.variance_slope)
        for factor in (0.95, 1.05)
    ]
    assert all(loss_of(other(validation), y) > loss_of(grown(validation), y) for other in others)
    assert torch.equal(grown(validation).logits.argmax(-1), validation.logits.argmax(-1))


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("num", [150, 2000])
def test_a_variance_that_says_nothing_is_left_out(num: int, spread: float) -> None:
    slopes = []
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        truth = 2 * torch.randn(num, 5, generator=generator).double()
        y = torch.multinomial(truth.softmax(-1), 1, generator=generator)[:, 0]
        variance = 0.3 * (spread * torch.randn(num, generator=generator).double()).exp()
        validation = Predictive(logits=1.5 * truth, variance=variance)
        slopes.append(fit_temperature(validation, y, by_variance=True).variance_slope)
    # By chance one in twenty passes the test of the likelihood ratio.
    assert sum(slope > 0 for slope in slopes) <= 1
    if spread == 0:
        assert set(slopes) == {0.0}


def test_no_slope_reaches_beyond_the_largest_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 50 * torch.randn(500, 5, generator=generator).double()
    variance = torch.rand(500, generator=generator).double()
    fitted = fit_temperature(
        Predictive(logits=logits, variance=variance),
        torch.randint(5, (500,), generator=generator),
        by_variance=True,
    )
    assert fitted.value * (1 + fitted.variance_slope * variance.mean()) ** 0.5 < 100.1
    assert fitted.variance_slope == 0


def test_variances_and_slopes_that_mean_nothing_are_refused() -> None:
    y = torch.tensor([0, 1])
    for broken in (float("nan"), float("inf")):
        validation = Predictive(logits=torch.randn(2, 3), variance=torch.tensor([1.0, broken]))
        with pytest.raises(NotFiniteError, match="variances that are not finite"):
            fit_temperature(validation, y, by_variance=True)
    zero = Predictive(logits=torch.randn(2, 3), variance=torch.zeros(2))
    assert fit_temperature(zero, y, by_variance=True).variance_slope == 0
    for slope in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"variance_slope \("):
            Temperature(value=1.0, variance_slope=slope)
    with pytest.raises(ConfigError, match=r"value \(0.0\)"):
        Temperature(value=0.0)


def test_a_growing_temperature_divides_samples_and_means_of_classes_alike() -> None:
    by_class = torch.tensor([[1.0, 5.0], [0.0, 0.0]])
    predictive = Predictive(logits=torch.ones(2, 2), samples=torch.ones(3, 2, 2), variance=by_class)
    scaled = Temperature(value=2.0, variance_slope=5.0)(predictive)
    expected = torch.tensor([[0.5 / 4, 0.5 / 4], [0.5, 0.5]])
    assert torch.equal(scaled.logits, expected)
    assert scaled.samples is not None
    assert torch.equal(scaled.samples, expected.expand(3, 2, 2))
    assert torch.equal(scaled.variance, by_class / 4)
    with pytest.raises(ConfigError, match="no posterior variance"):
        Temperature(value=1.0, variance_slope=1.0)(Predictive(logits=torch.ones(1, 2)))


@pytest.mark.parametrize("rate", [0.5, 0.55, 0.9, 0.95, 1.0])
def test_the_rule_accepts_at_least_the_chosen_rate_and_not_one_input_more(rate: float) -> None:
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    validation = Predictive(logits=logits)
    rule = fit_abstention(validation, score="msp", true_positive_rate=rate)
    accepted = rule.accepts(validation)
    assert int(accepted.sum()) == round(rate * 200)
    worst_accepted = validation.uncertainty("msp")[accepted].max()
    assert worst_accepted.item() == pytest.approx(rule.threshold)


def test_wrong_arguments_are_named() -> None:
    validation = Predictive(logits=torch.randn(4, 3))
    with pytest.raises(ConfigError, match=r"true_positive_rate \(0.0\)"):
        fit_abstention(validation, true_positive_rate=0.0)
    with pytest.raises(ConfigError, match="needs variance or samples"):
        fit_abstention(validation, score="variance")
    with pytest.raises(ConfigError, match="3 labels for 4 predictions"):
        fit_temperature(validation, torch.tensor([0, 1, 2]))


def test_a_model_without_mistakes_is_not_told_to_be_certain_of_everything() -> None:
    logits = torch.tensor([[2.0, -2.0]]).repeat(50, 1).double()
    fitted = fit_temperature(Predictive(logits=logits), torch.zeros(50, dtype=torch.long))
    confidence = fitted(Predictive(logits=logits)).probs.amax()
    # 50 seen inputs were right and half of one imagined input was: 50.5 of 51.
    assert confidence.item() == pytest.approx(50.5 / 51, abs=1e-4)


def test_labels_that_no_class_has_and_empty_validation_are_refused() -> None:
    predictive = Predictive(logits=torch.zeros(2, 3))
    with pytest.raises(ConfigError, match="must lie in 0 to 2"):
        fit_temperature(predictive, torch.tensor([0, 3]))
    with pytest.raises(ConfigError, match="validation is empty"):
        fit_temperature(Predictive(logits=torch.zeros(0, 3)), torch.zeros(0, dtype=torch.long))


def test_predictions_that_are_no_numbers_fit_nothing() -> None:
    lost = Predictive(logits=torch.full((3, 2), float("nan")))
    with pytest.raises(NotFiniteError, match="not finite"):
        fit_temperature(lost, torch.tensor([0, 1, 0]))
    with pytest.raises(NotFiniteError, match="entropy is NaN"):
        fit_abstention(lost)
    with pytest.raises(ConfigError, match="validation is empty"):
        fit_abstention(Predictive(logits=torch.zeros(0, 2)))
    fair = Predictive(logits=torch.eye(3))
    narrow = fit_temperature(fair, torch.tensor([0, 1, 2], dtype=torch.int32))
    assert narrow == fit_temperature(fair, torch.tensor([0, 1, 2]))


def test_a_class_that_is_ruled_out_is_left_out() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [2.0, 0.0]])
    y = torch.tensor([0, 1, 1, 1])
    masked = torch.cat([logits, torch.full((4, 1), -math.inf)], dim=1)
    expected = fit_temperature(Predictive(logits=logits), y)
    assert fit_temperature(Predictive(logits=masked), y).value == pytest.approx(expected.value)
    samples = torch.stack([masked, masked])
    drawn = Predictive(logits=masked, samples=samples)
    assert fit_temperature(drawn, y).value == pytest.approx(expected.value)
    with pytest.raises(ConfigError, match="rule out the label"):
        fit_temperature(Predictive(logits=masked), torch.tensor([0, 1, 1, 2]))


def test_labels_may_be_an_array_and_other_things_are_refused_by_name() -> None:
    generator = torch.Generator().manual_seed(0)
    predictive = Predictive(logits=torch.randn(50, 3, generator=generator))
    y = torch.randint(3, (50,), generator=generator)
    plain = y.numpy()
    for labels in (plain, plain.astype(np.uint16), plain.astype(">i4"), plain[::-1].copy()[::-1]):
        assert fit_temperature(predictive, labels) == fit_temperature(predictive, y)
    with pytest.raises(ConfigError, match=r"y is torch.float32 of shape \(50,\)"):
        fit_temperature(predictive, y.float())
    with pytest.raises(ConfigError, match=r"y is torch.int64 of shape \(50, 1\)"):
        fit_temperature(predictive, y.unsqueeze(1))
    with pytest.raises(ConfigError, match="validation is a list"):
        fit_abstention([1.0, 2.0])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="validation is a Tensor"):
        fit_temperature(predictive.logits, y)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="predictive is a Tensor"):
        fit_abstention(predictive).accepts(predictive.logits)  # pyright: ignore[reportArgumentType]


def test_a_fit_that_ends_at_the_largest_temperature_says_so() -> None:
    logits = 5 * torch.eye(3).repeat(10, 1)
    wrong = (torch.arange(30) + 1) % 3
    assert fit_temperature(Predictive(logits=logits), wrong).is_at_the_top
    mixed = torch.where(torch.arange(30) < 20, torch.arange(30) % 3, wrong)
    assert not fit_temperature(Predictive(logits=logits), mixed).is_at_the_top
    assert not Temperature(value=100.0, variance_slope=1.0).is_at_the_top


def test_where_no_temperature_is_better_than_another_it_is_one() -> None:
    one_class = Predictive(logits=torch.randn(8, 1), variance=torch.ones(8))
    assert fit_temperature(one_class, torch.zeros(8, dtype=torch.long)) == Temperature(value=1.0)
    flat = Predictive(logits=torch.ones(8, 3))
    assert fit_temperature(flat, torch.arange(8) % 3).value == 1.0


def test_a_threshold_on_confidences_near_one_is_that_of_exact_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 10, generator=generator)
    logits[:, 0] += 25  # in float32 most confidences are 1
    known, later = Predictive(logits=logits[:2000]), Predictive(logits=logits[2000:])
    rule = fit_abstention(known, score="msp")
    exact = fit_abstention(known.to(torch.float64), score="msp")
    assert rule.threshold == exact.threshold > 0
    assert 0.93 < float(rule.accepts(later).double().mean()) < 0.97
