import copy

import pytest
import torch

from lrformer.core import ConfigError, NotFittedError
from lrformer.heads import VariationalGPHead
from tests.tolerance import assert_close

gpytorch = pytest.importorskip("gpytorch")


def head(num_classes: int = 3, **settings) -> VariationalGPHead:
    gp = VariationalGPHead(2, num_classes, num_inducing=4, **settings).double()
    points = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gp.initialize(points, length_scale=1.3, num_data=50)
    strategy = gp.gp.variational_strategy.base_variational_strategy
    distribution = strategy._variational_distribution
    with torch.no_grad():
        distribution.variational_mean.normal_()
        distribution.chol_variational_covar.add_(
            0.1 * torch.randn_like(distribution.chol_variational_covar)
        )
    return gp


def test_the_marginals_equal_the_whitened_closed_form() -> None:
    gp = head().eval()
    x = torch.randn(7, 2, dtype=torch.float64)
    mean, variance = gp.marginals(x)
    strategy = gp.gp.variational_strategy.base_variational_strategy
    points, jitter = strategy.inducing_points, strategy.jitter_val
    scale, length = gp.gp.covar_module.outputscale, gp.gp.covar_module.base_kernel.lengthscale
    distribution = strategy._variational_distribution
    for c in range(3):

        def kernel(a, b, c=c):
            return scale[c] * torch.exp(-torch.cdist(a, b).square() / (2 * length[c] ** 2))

        chol = torch.linalg.cholesky(
            kernel(points, points) + jitter * torch.eye(4, dtype=torch.float64)
        )
        interp = torch.linalg.solve_triangular(chol, kernel(points, x), upper=False)
        root = distribution.chol_variational_covar[c].tril()
        middle = root @ root.T - torch.eye(4, dtype=torch.float64)
        constant = gp.gp.mean_module.constant[c]
        expected_mean = constant + interp.T @ distribution.variational_mean[c]
        expected = scale[c] + jitter + (interp * (middle @ interp)).sum(0)
        assert_close(mean[:, c], expected_mean, 1e-6)
        assert_close(variance[:, c], expected, 1e-6)


@pytest.mark.parametrize("batch", [7, 30])
def test_the_loss_equals_gpytorchs_negative_lower_bound(batch: int) -> None:
    gp = head(num_train_samples=10).train()
    x = torch.randn(batch, 2, dtype=torch.float64)
    y = torch.randint(3, (batch,))
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=3, mixing_weights=False)
    bound = gpytorch.mlls.VariationalELBO(likelihood, gp.gp, num_data=50)
    torch.manual_seed(1)
    with gpytorch.settings.num_likelihood_samples(10):
        expected = -bound(gp.gp(x), y)
    torch.manual_seed(1)
    assert_close(gp.elbo_loss(x, y), expected, 1e-6)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-3)])
def test_marginals_divergence_and_their_gradients_equal_gpytorchs(dtype, tolerance, offset) -> None:
    gp = head().to(dtype).train()
    with torch.no_grad():
        gp._strategy.inducing_points.add_(offset)
    # Far off the origin differences of squares lose digits; some inputs are far from every inducing point.
    x = (
        3
        + torch.randn(30, 2, dtype=dtype) * torch.linspace(0.1, 5, 30, dtype=dtype)[:, None]
        + offset
    ).requires_grad_()
    wanted = [x, *gp.parameters()]
    weights = torch.randn(2, 30, 3, dtype=dtype)

    def gradients(mean, variance, divergence):
        total = (weights[0] * mean).sum() + (weights[1] * variance).sum() + divergence
        return torch.autograd.grad(total, wanted)

    ours = (*gp.marginals(x), gp._divergence())
    output = gp.gp(x)
    theirs = (output.mean, output.variance, gp.gp.variational_strategy.kl_divergence().sum())
    for mine, reference in zip(
        (*ours, *gradients(*ours)), (*theirs, *gradients(*theirs)), strict=True
    ):
        assert_close(mine, reference, tolerance)


def test_autocast_and_a_wider_head_do_not_round_the_marginals() -> None:
    gp = head().float().eval()
    x = torch.randn(20, 2)
    plain = gp.marginals(x)
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = gp.marginals(x)
    wide = gp.double().marginals(x)
    for before, same, wider in zip(plain, under_autocast, wide, strict=True):
        assert torch.equal(before, same)
        assert wider.dtype == torch.float64
        # But for the jitter, which is smaller in float64.
        assert_close(before.double(), wider, 1e-2)


def test_points_that_coincide_and_a_kernel_that_is_flat_stay_finite() -> None:
    gp = head().float().train()
    with torch.no_grad():
        gp._strategy.inducing_points.copy_(torch.ones(4, 2))
        gp.gp.covar_module.base_kernel.lengthscale = 1e4
        gp.gp.covar_module.outputscale = 1e6
        # So sure that rounding makes a variance at the points negative.
        gp._strategy._variational_distribution.chol_variational_covar.mul_(1e-6)
    x = (1 + 1e-3 * torch.randn(300, 2)).requires_grad_()
    mean, variance = gp.marginals(x)
    assert bool((variance > 0).all())
    gp.elbo_loss(x, torch.arange(300) % 3).backward()
    assert mean.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in gp.parameters())


def test_setting_the_points_again_starts_again_at_the_prior() -> None:
    gp = head()
    gp.initialize(torch.randn(4, 2, dtype=torch.float64), length_scale=1.0, num_data=50)
    mean, root = gp._posterior()
    assert mean.abs().max() < 0.01
    assert_close(root, torch.eye(4, dtype=torch.float64).expand_as(root), 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_head_in_16_bits_differs_by_their_rounding_alone(dtype) -> None:
    gp = head().float().eval()
    x = torch.randn(20, 2)
    rounded = copy.deepcopy(gp).to(dtype)
    for before, after in zip(gp.marginals(x), rounded.marginals(x.to(dtype)), strict=True):
        assert after.dtype == torch.float32
        assert (before - after).abs().max() < 0.05 * before.abs().max()


def test_a_batch_as_large_as_the_number_of_classes_is_not_transposed() -> None:
    gp = head(num_train_samples=4000).train()
    x = torch.randn(6, 2, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    whole = gp.elbo_loss(x, y)
    halves = (gp.elbo_loss(x[:3], y[:3]) + gp.elbo_loss(x[3:], y[3:])) / 2
    assert halves.item() == pytest.approx(whole.item(), rel=0.05)


def test_samples_follow_the_marginals_and_the_generator() -> None:
    gp = head(num_samples=20_000).eval()
    x = torch.randn(3, 2, dtype=torch.float64)
    mean, variance = gp.marginals(x)
    predictive = gp.predict(x, torch.Generator().manual_seed(0))
    again = gp.predict(x, torch.Generator().manual_seed(0))
    assert predictive.samples is not None
    assert again.samples is not None
    assert torch.equal(predictive.samples, again.samples)
    assert (predictive.samples.mean(0) - mean).abs().max() < 0.05
    assert (predictive.samples.var(0) / variance - 1).abs().max() < 0.05


def test_weights_that_change_in_evaluation_mode_are_seen() -> None:
    first, second = head().eval(), head().eval()
    x = torch.randn(3, 2, dtype=torch.float64)
    with torch.no_grad():
        second.gp.variational_strategy.base_variational_strategy.inducing_points.mul_(2.0)
        before, expected = first(x), second(x)
        for old, new in zip(first.parameters(), second.parameters(), strict=True):
            old.copy_(new)  # as swapping in averaged weights does
        assert torch.equal(first(x), expected)
    assert (before - expected).abs().max() > 1e-3


def test_an_uninitialized_head_raises_and_wrong_points_are_named() -> None:
    gp = VariationalGPHead(2, 3)
    with pytest.raises(NotFittedError, match="inducing points are not set"):
        gp(torch.randn(4, 2))
    with pytest.raises(ConfigError, match=r"inducing_points has shape \(5, 2\)"):
        gp.initialize(torch.randn(5, 2), 1.0, 10)
    with pytest.raises(ConfigError, match=r"length_scale \(0.0\)"):
        gp.initialize(torch.randn(3, 2), 0.0, 10)


def drawn(seed: int | None) -> VariationalGPHead:
    gp = VariationalGPHead(2, 3, num_inducing=4).double()
    points = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draw = None if seed is None else torch.Generator().manual_seed(seed)
    gp.initialize(points, length_scale=1.3, num_data=50, generator=draw)
    return gp.train()


def test_a_posterior_that_starts_at_a_draw_says_something_and_is_surer_than_the_prior() -> None:
    x = torch.randn(50, 2, dtype=torch.float64)
    mean, variance = drawn(0).marginals(x)
    plain_mean, plain_variance = drawn(None).marginals(x)
    assert plain_mean.std(0).amax() < 0.01
    assert mean.std(0).amin() > 0.1
    assert bool((variance < plain_variance).all())
    at_points = drawn(0).gp.variational_strategy.base_variational_strategy.inducing_points
    # There the deviation is a tenth of the prior's, but for the jitter.
    ratio = drawn(0).marginals(at_points)[1] / drawn(None).marginals(at_points)[1]
    assert_close(ratio, torch.full_like(ratio, 0.01), 1e-3)


def test_a_draw_is_the_same_for_the_same_seed_and_survives_the_first_call() -> None:
    first, again, other = drawn(0), drawn(0), drawn(1)
    x = torch.randn(5, 2, dtype=torch.float64)
    values = [gp.marginals(x)[0] for gp in (first, again, other)]
    assert torch.equal(values[0], values[1])
    assert not torch.allclose(values[0], values[2])
    assert torch.equal(first.marginals(x)[0], values[0])
