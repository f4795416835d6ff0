"""The head of DUE: a sparse variational Gaussian process with one RBF kernel per class (gpytorch)."""

import warnings
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lrformer.core import ConfigError, NotFittedError, require_extra
from lrformer.core.full_precision import at_least_float32, without_autocast
from lrformer.heads.predictive import Predictive

# Of a posterior that starts at a draw, against the prior's.
DRAWN_DEVIATION = 0.1
# As in gpytorch: what is added to the diagonal of a kernel, and what smaller variances are rounded up to.
JITTER, JITTER_IN_DOUBLE = 1e-4, 1e-6
LEAST_VARIANCE, LEAST_VARIANCE_IN_DOUBLE = 1e-6, 1e-10


class VariationalGPHead(nn.Module):
    """Logits that are independent sparse Gaussian processes on the features, softmax on top.

    `initialize` sets the inducing points and the length-scale from training features; until then
    the head refuses to run. `elbo_loss` is the negative evidence lower bound per example.

    The parameters are those of a gpytorch model, `gp`; what follows from them is computed here, because gpytorch looks
    at every factorization on the CPU, and a training step could not be captured as a CUDA graph.

    Departs: the expected likelihood is estimated here and not by gpytorch's `SoftmaxLikelihood`,
    which transposes its samples when the batch is as large as the number of classes.
    """

    num_data: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        num_inducing: int | None = None,
        num_train_samples: int = 10,
        num_samples: int = 32,
    ) -> None:
        super().__init__()
        num_inducing = num_classes if num_inducing is None else num_inducing
        counts = {
            "num_inducing": num_inducing,
            "num_samples": num_samples,
            "num_train_samples": num_train_samples,
        }
        for name, value in counts.items():
            if value < 1:
                raise ConfigError(f"{name} ({value}) must be at least 1.")
        self.num_inducing = num_inducing
        self.num_train_samples = num_train_samples
        self.num_samples = num_samples
        self.gp: Any = _build_gp(torch.zeros(num_inducing, in_features), num_classes)
        self.register_buffer("num_data", torch.tensor(0, dtype=torch.int64))
        self._num_data = 0
        self.register_load_state_dict_post_hook(_read_loaded_state)

    @property
    def is_initialized(self) -> bool:
        """Whether the inducing points have been set."""
        return self._num_data > 0

    @torch.no_grad()
    def initialize(
        self,
        inducing_points: Float[Tensor, "m e"],
        length_scale: float,
        num_data: int,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Set the inducing points, the length-scale of every kernel, and the size of the training set.

        Args:
            generator: of the one draw from the prior at which the posterior starts; without it it starts as the prior.
        """
        strategy = self._strategy
        if inducing_points.shape != strategy.inducing_points.shape:
            raise ConfigError(
                f"inducing_points has shape {tuple(inducing_points.shape)}; this head needs "
                f"{tuple(strategy.inducing_points.shape)}."
            )
        if not length_scale > 0 or num_data < 1:
            raise ConfigError(
                f"length_scale ({length_scale}) and num_data ({num_data}) must be positive."
            )
        strategy.inducing_points.copy_(inducing_points)
        kernel = self.gp.covar_module.base_kernel
        kernel.lengthscale = torch.full_like(kernel.lengthscale, length_scale)
        posterior = strategy._variational_distribution
        if generator is None:
            posterior.initialize_variational_distribution(strategy.prior_distribution)
        else:
            mean, root = posterior.variational_mean, posterior.chol_variational_covar
            # In whitened coordinates, in which the prior has mean 0 and covariance 1.
            mean.copy_(torch.randn(mean.shape, generator=generator, device=generator.device))
            root.copy_(DRAWN_DEVIATION * torch.eye(self.num_inducing).expand_as(root))
        # Or the first call of gpytorch's model would put the prior there.
        strategy.variational_params_initialized.fill_(1)
        self.num_data.fill_(num_data)
        self._num_data = num_data

    @property
    def _strategy(self) -> Any:
        return self.gp.variational_strategy.base_variational_strategy

    def marginals(
        self, features: Float[Tensor, "b e"]
    ) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b c"]]:
        """Return the mean and the variance of every logit under the variational posterior."""
        if not self.is_initialized:
            raise NotFittedError(
                "the inducing points are not set; call initialize(...), or prepare(loader) on the "
                "method, before training."
            )
        with without_autocast(features):
            points = at_least_float32(self._strategy.inducing_points)
            dtype = torch.promote_types(features.dtype, points.dtype)
            points, features = points.to(dtype), features.to(dtype)
            is_double = dtype == torch.float64
            jitter = JITTER_IN_DOUBLE if is_double else JITTER
            least = LEAST_VARIANCE_IN_DOUBLE if is_double else LEAST_VARIANCE
            # In float64, where a kernel matrix and its jitter have no rounding that could make it indefinite.
            prior = self._kernel(points.double(), points.double())
            identity = torch.eye(self.num_inducing, dtype=prior.dtype, device=prior.device)
            factor = torch.linalg.cholesky_ex(prior + jitter * identity).L
            across = self._kernel(points, features).double()
            whitened = torch.linalg.solve_triangular(factor, across, upper=False).to(dtype)
            mean, root = (part.to(dtype) for part in self._posterior())
            spread = (root.mT @ whitened).square().sum(-2) - whitened.square().sum(-2)
            scale = self.gp.covar_module.outputscale.to(dtype).unsqueeze(-1)
            variance = (scale + jitter + spread).clamp_min(least)
            logits = (
                self.gp.mean_module.constant.unsqueeze(-1) + (mean.unsqueeze(-2) @ whitened)[:, 0]
            )
            return logits.mT, variance.mT

    def _kernel(self, a: Float[Tensor, "m e"], b: Float[Tensor, "n e"]) -> Float[Tensor, "c m n"]:
        """Return the scaled RBF kernel of every class between the rows of `a` and of `b`."""
        # Centred, because distances are differences of squares.
        center = a.mean(0)
        a, b = a - center, b - center
        squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1) - 2 * a @ b.mT
        module = self.gp.covar_module
        exponent = squares.clamp_min(0) / (2 * module.base_kernel.lengthscale.to(a).square())
        return module.outputscale.to(a).view(-1, 1, 1) * torch.exp(-exponent)

    def _posterior(self) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m m"]]:
        """Return mean and root of the covariance of the whitened values at the inducing points."""
        posterior = self._strategy._variational_distribution
        mean, root = posterior.variational_mean, posterior.chol_variational_covar
        return at_least_float32(mean), at_least_float32(root).tril()

    def _divergence(self) -> Float[Tensor, ""]:
        """Return the divergence of the whitened posterior from the standard normal, summed over the classes."""
        mean, root = self._posterior()
        log_determinant = root.diagonal(dim1=-2, dim2=-1).square().log().sum()
        return (mean.square().sum() + root.square().sum() - mean.numel() - log_determinant) / 2

    def forward(self, features: Float[Tensor, "b e"]) -> Float[Tensor, "b c"]:
        """Return the mean of the logits."""
        return self.marginals(features)[0]

    def elbo_loss(
        self,
        features: Float[Tensor, "b e"],
        targets: Int[Tensor, " b"] | Float[Tensor, "b c"],
    ) -> Float[Tensor, ""]:
        """Return the expected cross-entropy plus the divergence from the prior over `num_data`."""
        mean, variance = self.marginals(features)
        with without_autocast(features):
            noise = torch.randn(
                self.num_train_samples, *mean.shape, dtype=mean.dtype, device=mean.device
            )
            logits = mean + variance.sqrt() * noise
            expanded = targets.expand(self.num_train_samples, *targets.shape).flatten(0, 1)
            expected = nn.functional.cross_entropy(logits.flatten(0, 1), expanded)
            return expected + self._divergence() / self._num_data

    def predict(
        self, features: Float[Tensor, "b e"], generator: torch.Generator | None = None
    ) -> Predictive:
        """Return the prediction with samples from the marginals.

        The noise is shared by the batch, so that a seeded prediction does not depend on the other
        inputs; each input's marginal distribution is the same as with noise of its own.
        """
        mean, variance = self.marginals(features)
        device = generator.device if generator is not None else mean.device
        shape = (self.num_samples, 1, mean.shape[-1])
        noise = torch.randn(shape, generator=generator, device=device).to(mean)
        return Predictive(logits=mean, variance=variance, samples=mean + variance.sqrt() * noise)


def _read_loaded_state(head: nn.Module, _: object) -> None:
    assert isinstance(head, VariationalGPHead)
    head._num_data = int(head.num_data)


def _build_gp(inducing_points: Tensor, num_classes: int) -> nn.Module:
    """Return DUE's Gaussian process: constant mean, scaled RBF and Cholesky posterior for each class."""
    with warnings.catch_warnings():
        # What it imports is compiled by torch.jit, which torch tells its users to leave.
        warnings.simplefilter("ignore", FutureWarning)
        gpytorch = require_extra("gpytorch", extra="due")
    shape = torch.Size([num_classes])

    class IndependentGP(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            posterior = gpytorch.variational.CholeskyVariationalDistribution(
                inducing_points.shape[0], batch_shape=shape
            )
            strategy = gpytorch.variational.VariationalStrategy(
                self, inducing_points, posterior, learn_inducing_locations=True
            )
            super().__init__(
                gpytorch.variational.IndependentMultitaskVariationalStrategy(
                    strategy, num_tasks=num_classes
                )
            )
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(batch_shape=shape), batch_shape=shape
            )

        def forward(self, features: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(features), self.covar_module(features)
            )

    return IndependentGP()
