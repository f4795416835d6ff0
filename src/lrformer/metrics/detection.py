"""Telling out-of-distribution from in-distribution by an uncertainty score: larger means more uncertain.

The choice of the positive class moves AUPR and FPR a lot, so both directions are always named and always given.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.metrics.inputs import Array, as_scores, as_share
from lrformer.metrics.resampling import Ranking, cumulate, rank, whole_sample


@dataclass(frozen=True, kw_only=True)
class DetectionMetrics:
    """Separation of the whole ID set from the whole OOD set by one score.

    Attributes:
        auroc: probability that an OOD sample scores higher than an ID sample; the same in both directions.
        aupr_ood_positive: average precision with OOD as the positive class (the paper's).
        aupr_id_positive: average precision with ID as the positive class.
        fpr95_ood_positive: share of ID flagged at the threshold that catches 95% of OOD.
        fpr95_id_positive: share of OOD let through at the threshold that keeps 95% of ID.
    """

    num_id: int
    num_ood: int
    auroc: float
    aupr_ood_positive: float
    aupr_id_positive: float
    fpr95_ood_positive: float
    fpr95_id_positive: float


@dataclass(frozen=True, kw_only=True)
class RocCurve:
    """The points of the ROC curve with OOD positive, from (0, 0) to (1, 1), one for each distinct score."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Flagged:
    """How many ID and OOD samples are flagged as the threshold falls, one column for each distinct score."""

    id: Float[Tensor, "draws groups"]
    ood: Float[Tensor, "draws groups"]


def flagged_counts(
    id_counts: Float[Tensor, "draws b"], ood_counts: Float[Tensor, "draws o"], ranking: Ranking
) -> Flagged:
    """Return the cumulated counts of every draw, the most uncertain group first, after a column of zeros.

    Args:
        ranking: of both sets together, from `rank_both`.
    """
    weights = torch.cat([id_counts, ood_counts], dim=1).index_select(1, ranking.order)
    is_ood = (ranking.order >= id_counts.shape[1]).to(weights.dtype)
    ood = cumulate(weights * is_ood, ranking.ends)
    return Flagged(id=cumulate(weights, ranking.ends) - ood, ood=ood)


def rank_both(id_scores: Float[Tensor, " b"], ood_scores: Float[Tensor, " o"]) -> Ranking:
    """Return the samples of both sets, ID first, from the most to the least uncertain."""
    return rank(-torch.cat([id_scores, ood_scores]))


def auroc_draws(flagged: Flagged) -> Float[Tensor, " draws"]:
    """Return the area under the ROC curve of every draw; equal scores count half."""
    num_id, num_ood = flagged.id[:, -1], flagged.ood[:, -1]
    unflagged = num_id[:, None] - (flagged.id[:, 1:] + flagged.id[:, :-1]) / 2
    area = (flagged.ood.diff(dim=1) * unflagged).sum(dim=1, dtype=torch.float64)
    return area / (num_id.double() * num_ood)


def aupr_draws(flagged: Flagged, *, positive: str) -> Float[Tensor, " draws"]:
    """Return the average precision of every draw with `positive` ("ood" or "id") as the positive class."""
    if positive == "ood":
        hits, others = flagged.ood, flagged.id
        gained, found, beside = hits.diff(dim=1), hits[:, 1:], others[:, 1:]
    else:
        hits, others = flagged.id, flagged.ood
        # The ranking is read from its certain end: what is not yet flagged is what ID detection has found.
        gained = hits.diff(dim=1)
        found, beside = hits[:, -1:] - hits[:, :-1], others[:, -1:] - others[:, :-1]
    precision = found.double() / (found + beside).clamp_min(1)
    return (gained * precision).sum(dim=1, dtype=torch.float64) / hits[:, -1]


def fpr_draws(flagged: Flagged, *, tpr: float, positive: str) -> Float[Tensor, " draws"]:
    """Return the false positive rate of every draw at the first threshold that reaches `tpr`."""
    if positive == "ood":
        hits, others = flagged.ood, flagged.id
        needed = _enough(hits[:, -1:], tpr)
        first = torch.searchsorted(hits, needed)
        false = others.gather(1, first)
    else:
        hits, others = flagged.id, flagged.ood
        # Flagging more only loses ID, so the last column that keeps enough lets the least OOD through.
        spare = hits[:, -1:] - _enough(hits[:, -1:], tpr)
        last = torch.searchsorted(hits, spare, right=True) - 1
        false = others[:, -1:] - others.gather(1, last)
    return (false.double() / others[:, -1:])[:, 0]


def _enough(total: Float[Tensor, "draws 1"], share: float) -> Float[Tensor, "draws 1"]:
    """Return how many of `total` are at least `share` of them; a last bit above a whole number is not one more."""
    wide = total.double()
    return (wide * share - 1e-9 * wide).ceil().to(total.dtype)


def _flagged(id_scores: Array, ood_scores: Array) -> Flagged:
    """Return the ranking of the data themselves, after checking both sets of scores."""
    inside = as_scores(id_scores, name="id_scores")
    outside = as_scores(ood_scores, name="ood_scores")
    counts = whole_sample(len(inside)), whole_sample(len(outside))
    return flagged_counts(*counts, rank_both(inside, outside))


def auroc(id_scores: Array, ood_scores: Array) -> float:
    """Return the probability that an OOD sample has the larger score, ties counted half."""
    return float(auroc_draws(_flagged(id_scores, ood_scores)))


def aupr(id_scores: Array, ood_scores: Array, *, positive: str = "ood") -> float:
    """Return the average precision; `positive` says whether "ood" or "id" is the class to find."""
    return float(aupr_draws(_flagged(id_scores, ood_scores), positive=_as_positive(positive)))


def fpr_at_tpr(
    id_scores: Array, ood_scores: Array, *, tpr: float = 0.95, positive: str = "ood"
) -> float:
    """Return the false positive rate where the true positive rate first reaches `tpr`."""
    share = as_share(tpr, name="tpr")
    flagged = _flagged(id_scores, ood_scores)
    return float(fpr_draws(flagged, tpr=share, positive=_as_positive(positive)))


def detection_metrics(id_scores: Array, ood_scores: Array) -> DetectionMetrics:
    """Return AUROC, and AUPR and FPR at 95% TPR in both directions, of one score."""
    flagged = _flagged(id_scores, ood_scores)
    return DetectionMetrics(
        num_id=int(flagged.id[0, -1]),
        num_ood=int(flagged.ood[0, -1]),
        auroc=float(auroc_draws(flagged)),
        aupr_ood_positive=float(aupr_draws(flagged, positive="ood")),
        aupr_id_positive=float(aupr_draws(flagged, positive="id")),
        fpr95_ood_positive=float(fpr_draws(flagged, tpr=0.95, positive="ood")),
        fpr95_id_positive=float(fpr_draws(flagged, tpr=0.95, positive="id")),
    )


def roc_curve(id_scores: Array, ood_scores: Array) -> RocCurve:
    """Return the ROC curve with OOD as the positive class."""
    flagged = _flagged(id_scores, ood_scores)
    return RocCurve(
        fpr=tuple((flagged.id[0] / flagged.id[0, -1]).tolist()),
        tpr=tuple((flagged.ood[0] / flagged.ood[0, -1]).tolist()),
    )


def _as_positive(positive: str) -> str:
    """Return `positive`, or raise if it is neither class."""
    if positive not in {"ood", "id"}:
        raise ConfigError(f"positive ('{positive}') must be 'ood' or 'id'.")
    return positive
