import pytest
import torch

from lrformer.core import ConfigError
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


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.95, 1.0])
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
    with pytest.raises(ConfigError, match="not finite"):
        fit_temperature(lost, torch.tensor([0, 1, 0]))
    with pytest.raises(ConfigError, match="entropy is NaN"):
        fit_abstention(lost)
    with pytest.raises(ConfigError, match="validation is empty"):
        fit_abstention(Predictive(logits=torch.zeros(0, 2)))
    fair = Predictive(logits=torch.eye(3))
    narrow = fit_temperature(fair, torch.tensor([0, 1, 2], dtype=torch.int32))
    assert narrow == fit_temperature(fair, torch.tensor([0, 1, 2]))
