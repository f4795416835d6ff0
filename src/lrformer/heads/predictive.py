"""What every head and method returns: logits, their variance, samples, and scores of uncertainty."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictive:
    """A prediction for a batch; a field that the method does not have is None.

    Attributes:
        logits: the point prediction. Mean-field heads give the shrunk logits, Gaussian processes that are sampled their
            mean, other sampling methods the mean of the sampled logits, DUQ the logarithm of its kernel.
        variance: posterior variance of the logits, one for all classes `(b,)` or one for each
            `(b, c)`.
        samples: sampled logits, one leading entry for each draw or ensemble member.
        distances: `-log K_c(x) = d_c(x)^2 / (2 sigma^2)` to the centroid of each class (DUQ).
    """

    logits: Float[Tensor, "b c"]
    variance: Float[Tensor, " b"] | Float[Tensor, "b c"] | None = None
    samples: Float[Tensor, "s b c"] | None = None
    distances: Float[Tensor, "b c"] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is not None and not (isinstance(value, Tensor) and value.is_floating_point()):
                kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise ConfigError(f"{name} (a {kind}) must be a tensor of floating-point numbers.")
        if self.logits.ndim != 2:
            raise ConfigError(
                f"logits have shape {tuple(self.logits.shape)}; they must be (batch, classes)."
            )
        if self.samples is not None and self.samples.shape[1:] != self.logits.shape:
            raise ConfigError(
                f"samples have shape {tuple(self.samples.shape)}; they must be (samples, *{tuple(self.logits.shape)}), as the "
                "logits are."
            )
        rows = self.logits.shape[:1]
        if self.variance is not None and self.variance.shape not in (rows, self.logits.shape):
            raise ConfigError(
                f"variance has shape {tuple(self.variance.shape)}; it must be ({self.logits.shape[0]},) or "
                f"{tuple(self.logits.shape)}, as the logits are."
            )

    @property
    def probs(self) -> Float[Tensor, "b c"]:
        """Return class probabilities: the mean softmax of the samples, or the softmax of the logits."""
        if self.samples is not None:
            return self.samples.softmax(-1).mean(0)
        return self.logits.softmax(-1)

    @property
    def log_probs(self) -> Float[Tensor, "b c"]:
        """Return the logarithm of `probs`, computed without leaving the log domain."""
        if self.samples is not None:
            return self.samples.log_softmax(-1).logsumexp(0) - math.log(self.samples.shape[0])
        return self.logits.log_softmax(-1)

    @property
    def scores(self) -> tuple[str, ...]:
        """Return the names of the scores that this prediction can give."""
        return scores_from(
            frozenset(field.name for field in fields(self) if getattr(self, field.name) is not None)
        )

    def uncertainty(self, score: str = "entropy") -> Float[Tensor, " b"]:
        """Return the named score for each input, oriented so that larger is more uncertain.

        Raises:
            ConfigError: when the score is unknown or needs what this prediction does not have.
        """
        if score not in self.scores:
            rule = (
                "is unknown" if score not in SCORES else f"needs {' or '.join(SCORES[score].needs)}"
            )
            raise ConfigError(
                f"score '{score}' {rule}; this prediction can give: {', '.join(self.scores)}."
            )
        return SCORES[score].compute(self)

    def to(self, place: torch.device | str | torch.dtype) -> "Predictive":
        """Return the same prediction on another device, or in another precision."""
        moved = {
            field.name: value.to(place)
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        return replace(self, **moved)


def concatenate(parts: Sequence[Predictive]) -> Predictive:
    """Return one prediction for the batches of `parts`, in their order."""
    if not parts:
        raise ConfigError("parts is empty; give at least one Predictive.")

    def join(name: str, dim: int) -> Tensor | None:
        tensors = [getattr(part, name) for part in parts]
        return None if any(t is None for t in tensors) else torch.cat(tensors, dim)

    logits = torch.cat([part.logits for part in parts])
    return Predictive(
        logits=logits,
        variance=join("variance", 0),
        samples=join("samples", 1),
        distances=join("distances", 0),
    )


@dataclass(frozen=True, kw_only=True)
class Score:
    """How one score is computed, and which fields of a `Predictive` it needs: any one will do."""

    compute: Callable[[Predictive], Tensor]
    needs: tuple[str, ...] = ("logits",)


def scores_from(has: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the scores that a prediction with these fields gives: one that a score needs is enough."""
    return tuple(name for name, score in SCORES.items() if not has.isdisjoint(score.needs))


def entropy(log_probs: Float[Tensor, "*b c"]) -> Float[Tensor, "*b"]:
    """Return the Shannon entropy, in nats, of each row; `0 log 0` counts as zero."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def _msp(predictive: Predictive) -> Tensor:
    return 1 - predictive.probs.amax(-1)


def _entropy(predictive: Predictive) -> Tensor:
    return entropy(predictive.log_probs)


def _energy(predictive: Predictive) -> Tensor:
    return -predictive.logits.logsumexp(-1)


def _dempster_shafer(predictive: Predictive) -> Tensor:
    # K / (K + sum exp) in the log domain: exp of a large logit overflows float32.
    num_classes = predictive.logits.shape[-1]
    log_evidence = predictive.logits.logsumexp(-1)
    return torch.sigmoid(math.log(num_classes) - log_evidence)


def _variance(predictive: Predictive) -> Tensor:
    variance = predictive.variance
    if variance is None:
        # Of the probabilities: the variance of sampled logits grows with the logits, that is with
        # confidence, and would order inputs the wrong way round.
        assert predictive.samples is not None
        variance = predictive.samples.softmax(-1).var(0, correction=0)
    return variance.mean(-1) if variance.ndim > 1 else variance


def _mutual_information(predictive: Predictive) -> Tensor:
    assert predictive.samples is not None
    expected = entropy(predictive.samples.log_softmax(-1)).mean(0)
    # Jensen makes the difference non-negative; rounding must not say otherwise.
    return (entropy(predictive.log_probs) - expected).clamp_min(0)


def _kernel_distance(predictive: Predictive) -> Tensor:
    # DUQ scores by -max K; -log is increasing in it and does not underflow far from the data.
    assert predictive.distances is not None
    return predictive.distances.amin(-1)


SCORES: Mapping[str, Score] = MappingProxyType(
    {
        "msp": Score(compute=_msp),
        "entropy": Score(compute=_entropy),
        "energy": Score(compute=_energy),
        "dempster_shafer": Score(compute=_dempster_shafer),
        "variance": Score(compute=_variance, needs=("variance", "samples")),
        "mutual_information": Score(compute=_mutual_information, needs=("samples",)),
        "kernel_distance": Score(compute=_kernel_distance, needs=("distances",)),
    }
)
