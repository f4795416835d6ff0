"""Counts instead of copies: a bootstrap draw is a row that says how often it holds each sample.

Every metric is written once, over a (draws, samples) matrix of counts. A row of ones is the data themselves, so that
the estimate and its interval come from the same lines. Equal scores are one group: nothing depends on their order.
torchmetrics and scikit-learn have most of these metrics, one sample at a time: they are what the tests compare with.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Two sets of this size together stay below 2**24, up to which float32 holds every whole number.
MOST_IN_FLOAT32 = 2**22


def whole_sample(num_samples: int) -> Float[Tensor, "1 b"]:
    """Return the counts of the data themselves: one draw that holds each sample once."""
    return torch.ones(1, num_samples, dtype=torch.float64)


def draw_counts(
    num_draws: int, num_samples: int, *, generator: torch.Generator
) -> Float[Tensor, "draws b"]:
    """Return the counts of `num_draws` draws with replacement, each as large as the data.

    In float32, which is moved about several times as fast as float64, where it holds every sum of counts exactly.
    """
    picks = torch.randint(num_samples, (num_draws, num_samples), generator=generator)
    dtype = torch.float32 if num_samples <= MOST_IN_FLOAT32 else torch.float64
    counts = torch.zeros(num_draws, num_samples, dtype=dtype)
    return counts.scatter_add_(1, picks, torch.ones(1, 1, dtype=dtype).expand_as(picks))


def weighted_mean(
    counts: Float[Tensor, "draws b"], values: Float[Tensor, " b"]
) -> Float[Tensor, " draws"]:
    """Return the mean of `values` in every draw."""
    counts = counts.to(values.dtype)
    return counts @ values / counts.sum(dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """Samples in ascending order of a score.

    Attributes:
        order: the samples.
        ends: where in that order a group of equal scores ends; None where all scores differ.
    """

    order: Int[Tensor, " b"]
    ends: Int[Tensor, " groups"] | None


def rank(scores: Float[Tensor, " b"]) -> Ranking:
    """Return the samples in ascending order of `scores`, with the groups of equal ones."""
    ordered, order = scores.sort(stable=True)
    is_end = torch.ones_like(ordered, dtype=torch.bool)
    is_end[:-1] = ordered[1:] != ordered[:-1]
    return Ranking(order=order, ends=None if is_end.all() else is_end.nonzero()[:, 0])


def cumulate(
    ordered: Float[Tensor, "draws b"], ends: Int[Tensor, " groups"] | None
) -> Float[Tensor, "draws groups"]:
    """Return the sums up to the end of each group of equal scores, with a leading column of zeros."""
    sums = ordered.cumsum(dim=1)
    if ends is not None:
        sums = sums.index_select(1, ends)
    return torch.nn.functional.pad(sums, (1, 0))


def sums_at(
    positions: Float[Tensor, " positions"],
    counts: Float[Tensor, "draws groups"],
    sums: Float[Tensor, "draws groups"],
) -> Float[Tensor, "draws positions"]:
    """Return the sum over the first so many samples of each draw; a group cut in two is shared evenly.

    Args:
        positions: how many samples to sum over, each from 1 to the size of a draw.
        counts: cumulated counts, from `cumulate`.
        sums: cumulated values, from `cumulate`.
    """
    wanted = positions.expand(len(counts), -1).contiguous()
    upper = torch.searchsorted(counts.contiguous(), wanted)
    lower = upper - 1
    first, last = counts.gather(1, lower), counts.gather(1, upper)
    share = (wanted - first) / (last - first)
    return torch.lerp(sums.gather(1, lower), sums.gather(1, upper), share)
