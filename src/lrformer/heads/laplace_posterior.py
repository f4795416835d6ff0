"""The Laplace posterior of a model that is linear in its features: a precision matrix and its inverse."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn

from lrformer.core import ConfigError, NotFiniteError, NotFittedError
from lrformer.core.full_precision import apply_without_rounding, without_autocast
from lrformer.core.processes import num_processes
from lrformer.core.transforms import is_traced_or_transformed

Likelihood = Literal["gaussian", "softmax"]


class LaplacePosterior(nn.Module):
    """Covariance `ridge (ridge I + P)^-1` of the weights over `num_features` features.

    `P` is the sum over the training data of `phi^T phi` (`"gaussian"`: one covariance for all
    classes) or of `p_c (1 - p_c) phi^T phi` (`"softmax"`: one for each class). With `momentum` it is
    the moving average of the batch means instead, as in SNGP's reference, and then stands for one
    example: prefer the sum unless an epoch is too long. The average starts at the first batch.

    The sum is kept in float64: with 50,000 examples rounding in float32 exceeds the ridge. In
    distributed training each process adds up its own examples, and `refresh` sums over all processes;
    moving averages it averages, each process with the weight of the examples that it has seen.
    Until `refresh` has been called after the last change, nothing can be predicted. Compiled code knows of what was
    copied into the buffers from outside once `is_fitted` has been read, or a state loaded, outside of it.
    """

    precision: Tensor
    root: Tensor
    fitted: Tensor

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        ridge: float = 1.0,
        momentum: float | None = None,
        likelihood: Likelihood = "gaussian",
    ) -> None:
        super().__init__()
        if not ridge > 0:
            raise ConfigError(
                f"ridge ({ridge}) must be positive; the precision must be invertible."
            )
        if momentum is not None and not 0 < momentum < 1:
            raise ConfigError(
                f"momentum ({momentum}) must lie between 0 and 1; None sums over the data exactly."
            )
        if likelihood not in ("gaussian", "softmax"):
            raise ConfigError(f"likelihood ('{likelihood}') must be 'gaussian' or 'softmax'.")
        self.num_features = num_features
        self.num_classes = num_classes
        self.ridge = ridge
        self.momentum = momentum
        self.likelihood: Likelihood = likelihood
        num_matrices = 1 if likelihood == "gaussian" else num_classes
        shape = (num_matrices, num_features, num_features)
        self.register_buffer("precision", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("root", torch.zeros(shape))
        self.register_buffer("fitted", torch.tensor(0, dtype=torch.uint8))
        # A mirror of `fitted`: reading the buffer at every prediction would wait for the GPU.
        self._mirror(is_fitted=False)
        # How many examples a pass with frozen weights has seen so far; None outside of one.
        self._num_in_pass: int | None = None
        # Not a buffer: DistributedDataParallel overwrites buffers with those of process 0.
        self._own: Tensor | None = None
        self._num_own: Tensor | None = None
        self.register_load_state_dict_post_hook(_read_loaded_state)

    @property
    def is_fitted(self) -> bool:
        """Whether the covariance belongs to the present precision."""
        if not self._is_mirrored:
            self._mirror(is_fitted=bool(self.fitted))
        return self._is_fitted

    @property
    def _is_mirrored(self) -> bool:
        """Whether nobody has written to the buffer since it was mirrored: averages of weights copy it in place."""
        if is_traced_or_transformed() or self.fitted.is_meta:
            return True
        return not self.fitted.is_inference() and self.fitted._version == self._seen_version

    def _mirror(self, *, is_fitted: bool) -> None:
        self._is_fitted = is_fitted
        is_countless = is_traced_or_transformed() or self.fitted.is_inference()
        self._seen_version = -1 if is_countless else self.fitted._version

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # The version of a copied tensor begins anew.
        self._seen_version = -1

    @torch.no_grad()
    def reset(self) -> None:
        """Forget the data; called at the start of every epoch, unless there is a `momentum`."""
        self.precision.zero_()
        self._forget_own()
        self.mark_stale()

    @contextmanager
    def frozen_pass(self) -> Iterator[None]:
        """Forget the data, and let all that is added inside the block count alike: the weights stay as they are.

        It matters with `momentum` alone: there are no older weights to forget, and the average does not depend on the
        batches. After the block it is a moving average again.
        """
        self.reset()
        self._num_in_pass = 0
        try:
            yield
        finally:
            self._num_in_pass = None

    @torch.no_grad()
    def mark_stale(self) -> None:
        """Declare that the weights or the precision have changed since the last `refresh`."""
        # Compiled code is used again after somebody has written to the buffer, and cannot look at its version.
        if is_traced_or_transformed() or self._is_fitted or not self._is_mirrored:
            self.fitted.zero_()
        self._mirror(is_fitted=False)

    @torch.no_grad()
    def update(self, phi: Float[Tensor, "b f"], logits: Float[Tensor, "b c"] | None = None) -> None:
        """Add a batch; `logits` are needed by the softmax likelihood only. Keeps no graph."""
        self.mark_stale()
        if phi.shape[0] == 0:
            return
        with without_autocast(phi):
            batch = self._batch_precision(phi.detach().double(), logits)
            total = self.precision
            if num_processes() > 1:
                # No process waits for another here: they may have different numbers of batches.
                if self._own is None or self._num_own is None:
                    is_sum = self.momentum is None
                    self._own = torch.zeros_like(total) if is_sum else total.clone()
                    self._num_own = total.new_zeros(())
                self._num_own += phi.shape[0]
                total = self._own
            if self.momentum is None:
                total.add_(batch)
            else:
                total.lerp_(batch / phi.shape[0], self._rate(total, phi.shape[0]))
                # A state that is written before `refresh` has the average of its process.
                if total is not self.precision:
                    self.precision.copy_(total)

    def _rate(self, average: Tensor, num_examples: int) -> Tensor:
        """Return how far the average goes towards the mean of a batch; to the first one all the way."""
        assert self.momentum is not None
        if self._num_in_pass is not None:
            self._num_in_pass += num_examples
            return average.new_full((), num_examples / self._num_in_pass)
        is_empty = average.diagonal(dim1=-2, dim2=-1).sum() == 0
        return average.new_full((), 1 - self.momentum).masked_fill(is_empty, 1.0)

    def _batch_precision(self, phi: Tensor, logits: Tensor | None) -> Tensor:
        if self.likelihood == "gaussian":
            return (phi.mT @ phi).unsqueeze(0)
        if logits is None:
            raise ConfigError("likelihood='softmax' needs the logits of the batch; pass logits.")
        probs = logits.detach().double().softmax(-1)
        weights = (probs * (1 - probs)).mT
        return torch.stack([(phi * weight.unsqueeze(-1)).mT @ phi for weight in weights])

    @torch.no_grad()
    def refresh(self) -> None:
        """Invert the precision, summed over all processes; call before every evaluation.

        Raises:
            NotFittedError: when no data has been added.
            NotFiniteError: when a feature was NaN or infinite.
            ConfigError: when the ridge is too small for float64.
        """
        if num_processes() > 1:
            self._merge_processes()
        total = float(self.precision.diagonal(dim1=-2, dim2=-1).sum())
        if not math.isfinite(total):
            raise NotFiniteError(
                "the precision of the posterior is not finite: a feature of the data was NaN or infinite."
            )
        if total <= 0:
            raise NotFittedError(
                "the precision has seen no data; run a training epoch, or fit_posterior(loader)."
            )
        identity = torch.eye(self.num_features, dtype=torch.float64, device=self.precision.device)
        try:
            cholesky = torch.linalg.cholesky(self.precision + self.ridge * identity)
        except torch.linalg.LinAlgError as error:
            raise ConfigError(
                f"ridge ({self.ridge}) is lost in float64 beside a precision with a trace of {total:.3g}, which cannot be "
                "inverted; choose a larger one."
            ) from error
        inverse = torch.linalg.solve_triangular(cholesky, identity, upper=False)
        self.root.copy_(inverse * math.sqrt(self.ridge))
        self.fitted.fill_(1)
        self._mirror(is_fitted=True)

    def _merge_processes(self) -> None:
        """Bring what every process has seen by itself into the precision, the same in all of them."""
        own = torch.zeros_like(self.precision) if self._own is None else self._own
        if self.momentum is None:
            distributed.all_reduce(own)
            self.precision.add_(own)
            self._forget_own()
            return
        # The average of each process goes on with its next batch.
        weight = own.new_zeros(()) if self._num_own is None else self._num_own.clone()
        merged = own * weight
        distributed.all_reduce(merged)
        distributed.all_reduce(weight)
        if weight > 0:
            self.precision.copy_(merged / weight)

    def _forget_own(self) -> None:
        self._own = self._num_own = None

    def whiten(self, phi: Float[Tensor, "b f"]) -> Float[Tensor, "k b f"]:
        """Return `z` with `|z|^2` the variance of the logits; k is 1 or the number of classes.

        Raises:
            NotFittedError: when the covariance was never computed or is stale.
        """
        if not self.is_fitted:
            raise NotFittedError(
                "the posterior is not fitted, or older than the weights: call refresh() after an "
                "epoch of training, or fit_posterior(model, loader)."
            )
        with without_autocast(phi):
            return phi @ self.root.to(phi.dtype).mT

    @property
    def effective_rank(self) -> float:
        """Return `tr(P (P + ridge I)^-1)`: how many features the data has determined."""
        self.whiten(self.root.new_zeros(1, self.num_features))
        left = self.root.double().square().sum((-2, -1)).mean()
        return self.num_features - float(left)

    def _apply(self, fn, recurse=True):
        up = super()._apply

        def apply_but_precision() -> None:
            apply_without_rounding(self, ("root",), lambda: up(fn, recurse), least=torch.float32)

        apply_without_rounding(self, ("precision",), apply_but_precision)
        if self._own is not None and self._num_own is not None:
            device = self.precision.device
            self._own, self._num_own = self._own.to(device), self._num_own.to(device)
        return self


def _read_loaded_state(posterior: nn.Module, _: object) -> None:
    """Bring what is not a buffer in line with the buffers that were loaded."""
    assert isinstance(posterior, LaplacePosterior)
    posterior._forget_own()
    posterior._mirror(is_fitted=not posterior.fitted.is_meta and bool(posterior.fitted))
