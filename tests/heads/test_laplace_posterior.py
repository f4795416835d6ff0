"""The posterior as a state: when it is fitted and when stale, what copies it, saves it and computes with it."""

import copy
import math

import pytest
import torch

from lrformer.core import ConfigError, NotFiniteError, NotFittedError
from lrformer.heads import (
    RandomFeatureGP,
    RandomFeatureGPConfig,
)
from lrformer.heads.laplace_posterior import LaplacePosterior
from tests.heads.test_laplace_gp import fitted_head, generator
from tests.tolerance import assert_close


def test_the_momentum_precision_is_the_moving_average_of_batch_means() -> None:
    x = torch.randn(60, 3, generator=generator(), dtype=torch.float64)
    head = fitted_head(x, momentum=0.9)
    means = [
        phi.T @ phi / len(phi) for phi in (head.random_features(batch) for batch in x.split(17))
    ]
    expected = means[0]
    for mean in means[1:]:
        expected = 0.9 * expected + 0.1 * mean
    assert_close(head.posterior.precision[0], expected, 1e-12)


@pytest.mark.parametrize("batch_size", [7, 60])
def test_with_frozen_weights_a_moving_average_is_the_mean_whatever_the_batches(
    batch_size: int,
) -> None:
    x = torch.randn(60, 3, generator=generator(), dtype=torch.float64)
    head = fitted_head(x, momentum=0.999)
    phi = head.random_features(x)
    with head.posterior.frozen_pass():
        for batch in x.split(batch_size):
            head.update(batch)
    mean = phi.T @ phi / 60
    assert_close(head.posterior.precision[0], mean, 1e-12)
    head.update(x[:30])  # the weights may have changed: a moving average again
    expected = 0.999 * mean + 0.001 * phi[:30].T @ phi[:30] / 30
    assert_close(head.posterior.precision[0], expected, 1e-12)


def test_a_pass_that_breaks_off_leaves_a_moving_average() -> None:
    x = torch.randn(60, 3, generator=generator(), dtype=torch.float64)
    head = fitted_head(x, momentum=0.9)
    phi = head.random_features(x)

    def break_off() -> None:
        with head.posterior.frozen_pass():
            head.update(x[:20])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    head.update(x[20:])
    expected = 0.9 * phi[:20].T @ phi[:20] / 20 + 0.1 * phi[20:].T @ phi[20:] / 40
    assert_close(head.posterior.precision[0], expected, 1e-12)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_average_of_weights_follows_what_is_said_of_the_posterior(use_buffers) -> None:
    x = torch.randn(60, 3, generator=generator())
    head = RandomFeatureGP(3, 2, RandomFeatureGPConfig(num_random_features=16))
    head.update(x)
    head.refresh()
    average = torch.optim.swa_utils.AveragedModel(head, use_buffers=use_buffers)
    assert average.module.is_fitted
    head.train()(x)  # the weights may change from here on
    average.update_parameters(head)
    assert not head.is_fitted
    if not use_buffers:
        assert not average.module.is_fitted
        with pytest.raises(NotFittedError):
            average.module.eval().predict(x)


def test_a_copy_reads_anew_whether_it_is_fitted() -> None:
    x = torch.randn(60, 3, generator=generator())
    head, empty = (
        RandomFeatureGP(3, 2, RandomFeatureGPConfig(num_random_features=16)) for _ in range(2)
    )
    head.update(x)
    head.refresh()
    for buffer, other in zip(head.buffers(), empty.buffers(), strict=True):
        buffer.copy_(other)
    assert not copy.deepcopy(head).is_fitted
    assert not head.is_fitted
    assert copy.deepcopy(head).to("meta").is_fitted is False


@pytest.mark.unhooked
def test_a_head_is_traced_as_one_graph_and_transformed() -> None:
    torch._dynamo.reset()
    x = torch.randn(60, 3, generator=generator())
    head = RandomFeatureGP(3, 2, RandomFeatureGPConfig(num_random_features=16))
    traced = torch.compile(head, backend="eager", fullgraph=True)
    traced(x)
    assert not head.is_fitted
    head.refresh()
    head.eval()
    expected = head.predict(x).variance
    assert expected is not None
    variance = torch.compile(lambda z: head.predict(z).variance, backend="eager", fullgraph=True)
    assert_close(variance(x), expected, 1e-6)
    each = torch.vmap(lambda row: head.predict(row.unsqueeze(0)).variance)(x)
    assert_close(each.flatten(), expected, 1e-5)
    head.train()
    traced(x)
    assert not head.is_fitted
    # Somebody copies the state of a fitted head into the buffers, and training goes on.
    traced(x)
    head.posterior.fitted.fill_(1)
    traced(x)
    assert not head.is_fitted


def test_a_posterior_that_was_wider_for_a_while_comes_back() -> None:
    head = fitted_head(torch.randn(60, 3, generator=generator()))
    before = {name: value.dtype for name, value in head.state_dict().items()}
    head.double().float()
    assert {name: value.dtype for name, value in head.state_dict().items()} == before


def test_an_unfitted_or_stale_posterior_raises() -> None:
    x = torch.randn(20, 3)
    head = RandomFeatureGP(3, 2, RandomFeatureGPConfig(num_random_features=16))
    with pytest.raises(NotFittedError, match="not fitted"):
        head.predict(x)
    with pytest.raises(NotFittedError, match="seen no data"):
        head.refresh()
    head(x)  # in training mode, adds to the precision
    with pytest.raises(NotFittedError, match="older than the weights"):
        head.predict(x)
    head.refresh()
    head.eval().predict(x)
    head.train()(x)
    with pytest.raises(NotFittedError):
        head.eval().predict(x)
    head.refresh()
    head.update(x)
    with pytest.raises(NotFittedError):
        head.predict(x)
    head.refresh()
    head.reset()
    with pytest.raises(NotFittedError):
        head.predict(x)


def test_training_only_marks_stale_when_the_precision_is_not_summed_in_training() -> None:
    x = torch.randn(20, 3)
    head = fitted_head(x, update_in_training=False)
    before = head.posterior.precision.clone()
    head.train()(x)
    assert not head.is_fitted
    assert torch.equal(head.posterior.precision, before)


def test_the_precision_keeps_no_graph_and_evaluation_adds_nothing() -> None:
    x = torch.randn(20, 3, requires_grad=True)
    head = RandomFeatureGP(3, 2, RandomFeatureGPConfig(num_random_features=16))
    loss = head(x).square().sum()
    assert not head.posterior.precision.requires_grad
    loss.backward()
    before = head.posterior.precision.clone()
    head.eval()(x)
    assert torch.equal(head.posterior.precision, before)


@pytest.mark.parametrize("settings", [{}, {"likelihood": "softmax"}, {"momentum": 0.9}])
def test_a_saved_posterior_predicts_the_same_to_the_bit(settings: dict) -> None:
    x = torch.randn(40, 3, generator=generator())
    head = fitted_head(x, **settings)
    config = head.config
    loaded = RandomFeatureGP(3, 3, config, generator=generator(9)).eval()
    loaded.load_state_dict(head.state_dict())
    assert loaded.is_fitted
    for before, after in ((head.predict(x), loaded.predict(x)),):
        assert torch.equal(before.logits, after.logits)
        assert before.variance is not None
        assert after.variance is not None
        assert torch.equal(before.variance, after.variance)
    # What was saved unfitted must not load as fitted.
    head.reset()
    loaded.load_state_dict(head.state_dict())
    assert not loaded.is_fitted


def test_a_copy_of_a_head_has_a_posterior_of_its_own() -> None:
    x = torch.randn(20, 3)
    head = fitted_head(x)
    copied = copy.deepcopy(head)
    head.reset()
    assert copied.is_fitted
    copied.predict(x)


def test_autocast_and_half_precision_leave_the_posterior_in_full_precision() -> None:
    x = torch.randn(60, 3, generator=generator())
    head = fitted_head(x)
    precision = head.posterior.precision.clone()
    expected = head.variance(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = fitted_head(x)
        assert torch.equal(again.posterior.precision, precision)
        assert torch.equal(head.variance(x), expected)
    head.bfloat16()
    assert torch.equal(head.posterior.precision, precision)
    assert head.posterior.root.dtype == torch.float32


def test_an_empty_batch_adds_nothing() -> None:
    for momentum in (None, 0.9):
        config = RandomFeatureGPConfig(num_random_features=8, momentum=momentum)
        head = RandomFeatureGP(3, 2, config)
        head.update(torch.randn(4, 3))
        before = head.posterior.precision.clone()
        head.update(torch.zeros(0, 3))
        assert torch.equal(head.posterior.precision, before)


def test_a_feature_that_is_no_number_and_a_ridge_that_is_lost_are_told_apart() -> None:
    posterior = LaplacePosterior(8, 2)
    posterior.update(torch.full((3, 8), math.nan))
    with pytest.raises(NotFiniteError, match="a feature of the data was NaN or infinite"):
        posterior.refresh()
    flat = torch.randn(1000, 4, generator=generator()) @ torch.randn(4, 64, generator=generator())
    posterior = LaplacePosterior(64, 2, ridge=1e-9)
    posterior.update(100 * flat)
    with pytest.raises(ConfigError, match=r"ridge \(1e-09\) is lost in float64"):
        posterior.refresh()
    assert not posterior.is_fitted
