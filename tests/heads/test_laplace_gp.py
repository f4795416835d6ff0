import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from torch import Tensor, nn

from lrformer.core import ConfigError, NotFittedError
from lrformer.heads import (
    FlatVarianceWarning,
    RandomFeatureGP,
    RandomFeatureGPConfig,
    distance_report,
    mean_field_logits,
)
from tests.tolerance import TOLERANCE, assert_close


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fitted_head(x: Tensor, num_classes: int = 3, **settings) -> RandomFeatureGP:
    config = RandomFeatureGPConfig(**{"num_random_features": 64, **settings})
    head = RandomFeatureGP(x.shape[1], num_classes, config, generator=generator()).to(x.dtype)
    for batch in x.split(17):
        head.update(batch)
    head.refresh()
    return head.eval()


def closed_form(head: RandomFeatureGP, x: Tensor, at: Tensor, weights: Tensor) -> Tensor:
    """The posterior variance by a dense float64 solve, one data point after the other."""
    ridge = head.config.ridge
    size = head.config.num_random_features
    precision = ridge * torch.eye(size, dtype=torch.float64)
    for weight, row in zip(weights, head.random_features(x).double(), strict=True):
        precision = precision + weight * torch.outer(row, row)
    phi = head.random_features(at).double()
    return ridge * (phi * torch.linalg.solve(precision, phi.T).T).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("ridge", [1.0, 0.01])
@pytest.mark.parametrize("convention", ["paper", "sngp"])
def test_the_variance_equals_a_closed_form_on_the_data_and_on_a_held_out_grid(
    dtype: torch.dtype, ridge: float, convention: str
) -> None:
    x = torch.randn(50, 2, generator=generator()).to(dtype)
    head = fitted_head(x, ridge=ridge, convention=convention, feature_scale="literal")
    side = torch.linspace(-6, 6, 9, dtype=dtype)
    grid = torch.cartesian_prod(side, side)
    for at in (x, grid):
        expected = closed_form(head, x, at, torch.ones(50))
        assert_close(head.variance(at), expected, 100 * TOLERANCE[dtype])


def test_the_softmax_likelihood_has_its_own_closed_form_for_each_class() -> None:
    x = torch.randn(40, 3, generator=generator(), dtype=torch.float64)
    head = fitted_head(x, likelihood="softmax", num_random_features=32)
    probs = head(x).softmax(-1)
    at = 3 * torch.randn(15, 3, dtype=torch.float64)
    variance = head.variance(at)
    for index in range(3):
        expected = closed_form(head, x, at, probs[:, index] * (1 - probs[:, index]))
        assert_close(variance[:, index], expected, 1e-10)


def test_the_mean_of_a_ridge_regression_is_the_mean_of_a_gaussian_process() -> None:
    """With beta fitted by least squares the head is a Gaussian process with kernel Phi Phi^T."""
    x = torch.randn(30, 2, generator=generator(), dtype=torch.float64)
    y = torch.randn(30, 3, generator=generator(1), dtype=torch.float64)
    at = torch.randn(9, 2, dtype=torch.float64)
    head = fitted_head(x, feature_scale="literal", output_bias=False)
    phi, phi_at = head.random_features(x), head.random_features(at)
    beta = torch.linalg.solve(phi.T @ phi + torch.eye(64, dtype=torch.float64), phi.T @ y)
    head.output.weight.data.copy_(beta.T)
    kernel, cross = phi @ phi.T + torch.eye(30, dtype=torch.float64), phi_at @ phi.T
    mean = cross @ torch.linalg.solve(kernel, y)
    variance = phi_at.square().sum(-1) - (cross * torch.linalg.solve(kernel, cross.T).T).sum(-1)
    assert_close(head(at), mean, 1e-10)
    assert_close(head.variance(at), variance, 1e-10)


def test_in_two_dimensions_the_variance_grows_with_distance_up_to_the_prior() -> None:
    x = 1.5 * torch.randn(500, 2, generator=generator())
    head = fitted_head(x, num_random_features=1024, feature_scale="literal", length_scale=2.0)
    angles = torch.arange(64) * (2 * math.pi / 64)
    directions = torch.stack([angles.cos(), angles.sin()], -1)
    radii = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    means = [head.variance(radius * directions).mean().item() for radius in radii]
    assert means == sorted(means)
    far = 20 * directions
    prior = head.random_features(far).square().sum(-1).mean()
    assert head.variance(far).mean().item() == pytest.approx(prior.item(), rel=0.05)
    assert means[0] < 0.05 * prior


def clusters(num: int, seed: int) -> Tensor:
    centers = torch.randn(10, 384, generator=generator(7))
    index = torch.randint(10, (num,), generator=generator(seed))
    return centers[index] + 0.5 * torch.randn(num, 384, generator=generator(seed + 1))


@pytest.mark.parametrize("feature_scale", ["layer_norm", "calibrate"])
def test_at_width_384_a_relative_length_scale_carries_distance(feature_scale: str) -> None:
    x = clusters(1500, 0)
    config = RandomFeatureGPConfig(feature_scale=feature_scale)
    head = RandomFeatureGP(384, 10, config, generator=generator())
    if feature_scale == "calibrate":
        head.calibrate(x)
    head.update(x)
    head.refresh()
    report = distance_report(head, clusters(200, 5), generator=generator())
    assert report.ratio > 3
    assert 20 < report.effective_rank < 400
    assert report.near < report.far < 1.05 * report.prior


def test_at_width_384_the_papers_literal_length_scale_carries_none_and_warns() -> None:
    x = clusters(1500, 0)
    config = RandomFeatureGPConfig(feature_scale="literal", length_scale=2.0)
    head = RandomFeatureGP(384, 10, config, generator=generator())
    head.update(x)
    head.refresh()
    with pytest.warns(
        FlatVarianceWarning, match=r"carries no distance.*ratio 1\.\d.*set feature_scale to 'cal"
    ):
        report = distance_report(head, clusters(200, 5), generator=generator())
    assert report.ratio < 2
    object.__setattr__(head.config, "feature_scale", "layer_norm")
    with pytest.warns(FlatVarianceWarning, match="set another length_scale"):
        distance_report(head, clusters(200, 5), generator=generator())


def test_what_counts_as_far_lies_about_the_mean_of_the_features_not_about_the_origin() -> None:
    x = torch.randn(400, 1, generator=generator(), dtype=torch.float64)
    # On a line, ten median distances from the origin would be in the midst of these.
    x = x + 10 * np.median(pdist(x.numpy()))
    config = RandomFeatureGPConfig(feature_scale="literal", length_scale=1.0)
    head = RandomFeatureGP(1, 2, config, generator=generator())
    head.update(x.float())
    head.refresh()
    report = distance_report(head, x, generator=generator())
    assert report.far > 0.9 * report.prior
    assert report.near < 0.1 * report.prior


def test_the_effective_rank_is_the_trace_of_the_smoother() -> None:
    x = torch.randn(20, 3, generator=generator(), dtype=torch.float64)
    head = fitted_head(x, ridge=0.5)
    eigenvalues = torch.linalg.eigvalsh(head.posterior.precision[0])
    expected = (eigenvalues / (eigenvalues + 0.5)).sum().item()
    assert head.posterior.effective_rank == pytest.approx(expected, rel=1e-9)


def test_mean_field_divides_by_the_root_and_factor_zero_changes_nothing() -> None:
    mean = torch.tensor([[2.0, -4.0]])
    assert mean_field_logits(mean, torch.tensor([3.0]), factor=1.0).tolist() == [[1.0, -2.0]]
    per_class = torch.tensor([[3.0, 15.0]])
    assert mean_field_logits(mean, per_class, factor=1.0).tolist() == [[1.0, -1.0]]
    assert torch.equal(mean_field_logits(mean, per_class, factor=0.0), mean)


@torch.no_grad()
@pytest.mark.parametrize("likelihood", ["gaussian", "softmax"])
def test_monte_carlo_samples_have_the_posterior_mean_and_covariance(likelihood: str) -> None:
    x = torch.randn(30, 2, generator=generator())
    head = fitted_head(
        x, approximation="monte_carlo", num_samples=20_000, likelihood=likelihood,
        feature_scale="literal", num_random_features=16,
    )  # fmt: skip
    at = 4 * torch.randn(3, 2, generator=generator(3))
    predictive = head.predict(at, generator())
    assert predictive.samples is not None
    mean = head(at)
    deviation = predictive.samples.double() - mean.double()
    variance = head.variance(at).double()
    variance = variance.unsqueeze(-1) if variance.ndim == 1 else variance
    assert (deviation.mean(0).abs() < 5 * (variance / 20_000).sqrt()).all()
    assert (deviation.var(0) / variance - 1).abs().max() < 0.06
    # Draws of functions: two inputs share the covariance of the posterior.
    whitened = head.posterior.whiten(head.random_features(at)).double()
    expected = (whitened[0, 0] * whitened[0, 1]).sum()
    measured = (deviation[:, 0, 0] * deviation[:, 1, 0]).mean()
    assert measured == pytest.approx(expected.item(), abs=0.05 * variance.max().item())


@torch.no_grad()
def test_the_logits_of_monte_carlo_are_the_posterior_mean_without_the_noise_of_the_draws() -> None:
    x = torch.randn(30, 2, generator=generator())
    head = fitted_head(x, approximation="monte_carlo", num_samples=3)
    predictive = head.predict(x, generator())
    assert predictive.samples is not None
    assert torch.equal(predictive.logits, head.output(head.random_features(x)))
    assert (predictive.samples.mean(0) - predictive.logits).abs().max() > 1e-3


def test_the_head_trains_in_somebody_elses_loop() -> None:
    x = torch.cat([torch.randn(60, 2) - 2, torch.randn(60, 2) + 2])
    y = torch.arange(120) // 60
    config = RandomFeatureGPConfig(num_random_features=128, feature_scale="literal")
    model = nn.Sequential(nn.Linear(2, 2), RandomFeatureGP(2, 2, config, generator=generator()))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    head = model[1]
    assert isinstance(head, RandomFeatureGP)
    for _ in range(20):
        head.reset()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    head.refresh()
    model.eval()
    near = head.predict(model[0](x))
    far = head.predict(model[0](30 * torch.randn(50, 2)))
    assert (near.probs.argmax(-1) == y).float().mean() > 0.95
    assert near.variance is not None
    assert far.variance is not None
    assert far.variance.mean() > 3 * near.variance.mean()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ridge": 0.0}, r"ridge \(0.0\)"),
        ({"momentum": 1.0}, r"momentum \(1.0\)"),
        ({"likelihood": "poisson"}, "likelihood"),
        ({"approximation": "laplace"}, "approximation"),
        ({"mean_field_factor": -1.0}, "mean_field_factor"),
        ({"num_samples": 0}, "num_samples"),
    ],
)
def test_wrong_settings_are_named(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RandomFeatureGP(3, 2, RandomFeatureGPConfig(**wrong))


def test_the_softmax_likelihood_asks_for_logits() -> None:
    head = RandomFeatureGP(3, 2, RandomFeatureGPConfig(likelihood="softmax"))
    with pytest.raises(ConfigError, match="needs the logits"):
        head.posterior.update(torch.randn(4, 1024))


@pytest.mark.parametrize("feature_scale", ["literal", "layer_norm", "calibrate"])
def test_a_stretched_kernel_sees_inputs_nearer_to_each_other(feature_scale) -> None:
    config = RandomFeatureGPConfig(num_random_features=2048, feature_scale=feature_scale)
    head = RandomFeatureGP(3, 2, config, generator=torch.Generator().manual_seed(0))
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    if feature_scale == "calibrate":
        head.calibrate(x)
    kernel = head.random_features(x) @ head.random_features(x).mT
    head.stretch(2.0)
    stretched = head.random_features(x) @ head.random_features(x).mT
    # exp(-d^2 / (2 (2 l)^2)) is the fourth root.
    known = kernel > 0.2
    assert_close(stretched[known], kernel[known] ** 0.25, 0.1)


@pytest.mark.parametrize("change", ["stretch", "calibrate"])
def test_a_new_scale_of_the_features_forgets_the_data_seen_on_the_old_one(change: str) -> None:
    x = torch.randn(40, 3, generator=generator())
    config = RandomFeatureGPConfig(num_random_features=64, feature_scale="calibrate")

    def rescale(head: RandomFeatureGP) -> None:
        head.stretch(3.0) if change == "stretch" else head.calibrate(3 * x)

    heads = [RandomFeatureGP(3, 2, config, generator=generator()) for _ in range(2)]
    for head in heads:
        head.calibrate(x)
    used, fresh = heads
    used.update(x)
    used.refresh()
    for head in heads:
        rescale(head)
    with pytest.raises(NotFittedError):
        used.eval().predict(x)
    for head in heads:
        head.update(x)
        head.refresh()
    assert torch.equal(used.variance(x), fresh.variance(x))
