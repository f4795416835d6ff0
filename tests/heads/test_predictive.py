import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import entropy as scipy_entropy

from lrformer.core import ConfigError
from lrformer.heads import SCORES, Predictive, concatenate
from tests.tolerance import TOLERANCE, assert_close


def sampled(seed: int = 0) -> Predictive:
    samples = 3 * torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(seed)).double()
    return Predictive(logits=samples.mean(0), samples=samples)


def test_every_score_equals_its_formula_in_numpy() -> None:
    predictive = sampled()
    assert predictive.samples is not None
    probs = softmax(predictive.samples.numpy(), -1)
    mean = probs.mean(0)
    evidence = logsumexp(predictive.logits.numpy(), -1)
    expected = {
        "msp": 1 - mean.max(-1),
        "entropy": scipy_entropy(mean, axis=-1),
        "energy": -evidence,
        "dempster_shafer": 4 / (4 + torch.tensor(evidence).exp().numpy()),
        "variance": probs.var(0).mean(-1),
        "mutual_information": scipy_entropy(mean, axis=-1) - scipy_entropy(probs, axis=-1).mean(0),
    }
    assert predictive.scores == tuple(expected)
    for name, value in expected.items():
        assert_close(
            predictive.uncertainty(name), torch.tensor(value), 10 * TOLERANCE[torch.float64]
        )


def test_probabilities_are_the_mean_softmax_of_the_samples_and_not_the_softmax_of_the_mean() -> (
    None
):
    predictive = sampled()
    assert predictive.samples is not None
    assert_close(predictive.probs, predictive.samples.softmax(-1).mean(0), 1e-12)
    assert_close(predictive.log_probs.exp(), predictive.probs, 1e-12)
    assert (predictive.probs - predictive.logits.softmax(-1)).abs().max() > 0.01


def test_scores_agree_with_pytorch_ood() -> None:
    detectors = pytest.importorskip("pytorch_ood.detector")
    predictive = Predictive(logits=torch.randn(20, 6).double())
    peers = {
        "msp": detectors.MaxSoftmax.score(predictive.logits) + 1,
        "energy": detectors.EnergyBased.score(predictive.logits),
        "entropy": detectors.Entropy.score(predictive.logits),
    }
    for name, expected in peers.items():
        assert_close(predictive.uncertainty(name), expected, 1e-6)


def test_a_score_that_is_missing_names_those_that_are_there() -> None:
    predictive = Predictive(logits=torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=r"'variance' needs variance or samples.*msp, entropy"):
        predictive.uncertainty("variance")
    with pytest.raises(ConfigError, match=r"'kernel_distance' needs distances"):
        predictive.uncertainty("kernel_distance")
    with pytest.raises(ConfigError, match=r"'surprise' is unknown.*dempster_shafer"):
        predictive.uncertainty("surprise")


@settings(max_examples=25)
@given(st.floats(0.05, 0.95), st.integers(2, 6))
def test_a_flatter_prediction_is_more_uncertain_by_every_score_of_logits(
    shrink: float, num_classes: int
) -> None:
    peaked = torch.zeros(1, num_classes, dtype=torch.float64)
    peaked[0, 0] = 8
    flat = shrink * peaked
    for name in ("msp", "entropy", "energy", "dempster_shafer"):
        sure = Predictive(logits=peaked).uncertainty(name)
        unsure = Predictive(logits=flat).uncertainty(name)
        assert unsure > sure, name


def test_scores_stay_finite_for_huge_logits() -> None:
    logits = torch.tensor([[500.0, -500.0, 0.0]])
    predictive = Predictive(
        logits=logits, samples=logits.expand(3, 1, 3), variance=torch.ones(1), distances=-logits
    )
    for name in SCORES:
        assert predictive.uncertainty(name).isfinite().all(), name


def test_variance_of_each_class_is_averaged_and_of_all_is_returned() -> None:
    logits = torch.zeros(2, 3)
    per_class = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 6.0]])
    assert Predictive(logits=logits, variance=per_class).uncertainty("variance").tolist() == [2, 2]
    shared = torch.tensor([4.0, 5.0])
    assert Predictive(logits=logits, variance=shared).uncertainty("variance").tolist() == [4, 5]


def test_concatenated_batches_score_as_one() -> None:
    whole = sampled()
    assert whole.samples is not None
    parts = [
        Predictive(logits=whole.logits[rows], samples=whole.samples[:, rows])
        for rows in (slice(0, 2), slice(2, 5))
    ]
    joined = concatenate(parts)
    for name in whole.scores:
        assert torch.equal(joined.uncertainty(name), whole.uncertainty(name))
    with pytest.raises(ConfigError, match="parts is empty"):
        concatenate([])


def test_entropy_of_the_uniform_distribution_is_the_logarithm_of_the_classes() -> None:
    assert Predictive(logits=torch.zeros(1, 7)).uncertainty("entropy").item() == pytest.approx(
        math.log(7)
    )


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be \\(batch, classes\\)"):
        Predictive(logits=torch.zeros(3))
    with pytest.raises(ConfigError, match="variance has shape"):
        Predictive(logits=torch.zeros(3, 4), variance=torch.zeros(2))
    with pytest.raises(ConfigError, match=r"samples have shape \(5, 3, 4\)"):
        Predictive(logits=torch.zeros(3, 2), samples=torch.zeros(5, 3, 4))
    with pytest.raises(ConfigError, match=r"logits \(a torch.int64\) must be a tensor of floating"):
        Predictive(logits=torch.zeros(3, 4, dtype=torch.long))
    with pytest.raises(ConfigError, match=r"logits \(a list\) must be a tensor of floating"):
        Predictive(logits=[1.0, 2.0])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("shape", [(4,), (5, 2), (5, 3, 1), ()])
def test_a_variance_of_another_shape_is_refused(shape) -> None:
    with pytest.raises(ConfigError, match=r"must be \(5,\) or \(5, 3\)"):
        Predictive(logits=torch.zeros(5, 3), variance=torch.ones(shape))
