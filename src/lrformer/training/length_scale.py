"""The length-scale of a GP that is fitted to frozen features, chosen on outliers made of validation images."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, distributed

from lrformer.core import ConfigError
from lrformer.core.modes import evaluating
from lrformer.core.processes import num_processes, take_from_first
from lrformer.data import DeviceBatches, Split
from lrformer.data.outliers import NUM_BLOCKS, make_outliers
from lrformer.heads import RandomFeaturePosterior
from lrformer.methods import LRFormer, Method
from lrformer.methods.base import Loader, collect_features
from lrformer.metrics import detection_metrics
from lrformer.training.splits import validation_batches

Head = TypeVar("Head", bound=RandomFeaturePosterior)

# From an eighth of the length-scale that the config names to twice that, in steps of the root of two.
FACTORS = tuple(2 ** (step / 2) for step in range(-6, 3))
# Inverted images are not among them: Solarize shows such images to a network in training.
KINDS = ("shuffled", "mixed")
NUM_TRAINING_FEATURES = 8192
NUM_VALIDATION_IMAGES = 4096
FEATURES_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class LengthScaleChoice:
    """What was tried, by how well the variance found made outliers (AUPR, mean over their kinds), and what was taken."""

    length_scale: float
    tried: dict[str, float]


def wants_length_scale(method: Method) -> bool:
    """Return whether `method` leaves its length-scale to `choose_length_scale`."""
    return isinstance(method, LRFormer) and method.config.choose_length_scale


def check_length_scale(method: Method, split: Split) -> None:
    """Raise before training where outliers cannot be made of the data."""
    if not wants_length_scale(method):
        return
    if not split.is_image:
        raise ConfigError(
            f"choose_length_scale needs images, of which outliers can be made; {split.name} holds points. "
            "Leave it out."
        )
    side = min(split.x.shape[1:3])
    if side < NUM_BLOCKS:
        raise ConfigError(
            f"choose_length_scale needs images of at least {NUM_BLOCKS} pixels a side; those of {split.name} "
            f"have {side}. Leave it out."
        )


@torch.no_grad()
def choose_length_scale(
    method: Method, loader: Loader, known: DeviceBatches
) -> LengthScaleChoice | None:
    """Set the length-scale of a trained method's GP, whose features are calibrated; its posterior is then stale.

    Args:
        loader: training data; a part of them is enough to compare length-scales.
        known: the validation split; None is returned for a method that does not want the choice.
    """
    if not isinstance(method, LRFormer) or not wants_length_scale(method):
        return None
    gp = method.gp
    assert gp is not None
    rows = np.random.default_rng(0).permutation(len(known.split))[:NUM_VALIDATION_IMAGES]
    images = known.split.take(np.sort(rows))
    with evaluating(method):
        trained = collect_features(method, loader, limit=NUM_TRAINING_FEATURES)
        inside = _features(method, images, like=known)
        outside = [_features(method, make_outliers(images, kind), like=known) for kind in KINDS]
    found = try_factors(gp, trained, inside, outside, add=lambda head, part: head.update(part))
    best = best_factor(found, known.device)
    gp.stretch(best)
    start = gp.config.length_scale
    return LengthScaleChoice(length_scale=start * best, tried=describe_tried(found, start))


def try_factors(
    head: Head,
    trained: Float[Tensor, "n e"],
    inside: Float[Tensor, "b e"],
    outside: Sequence[Float[Tensor, "b e"]],
    *,
    add: Callable[[Head, Tensor], None],
) -> dict[float, float]:
    """Return for every factor on the length-scale of `head` how well its variance finds `outside` (AUPR, their mean).

    Args:
        trained: training features, the same in every process.
        inside: features of validation inputs; `outside` has those of outliers made of them.
        add: adds a batch of training features to the precision of a head.
    """
    # A posterior is summed over the processes: each adds its own part, so that no input counts twice.
    is_shared = num_processes() > 1
    own = (
        trained.tensor_split(distributed.get_world_size())[distributed.get_rank()]
        if is_shared
        else trained
    )
    found: dict[float, float] = {}
    for factor in FACTORS:
        tried = copy.deepcopy(head)
        tried.stretch(factor)
        with tried.posterior.frozen_pass():
            for part in own.split(FEATURES_AT_ONCE):
                add(tried, part)
            tried.refresh()
        scores = _scores(tried, inside)
        found[factor] = fmean(
            detection_metrics(scores, _scores(tried, other)).aupr_ood_positive for other in outside
        )
    return found


def best_factor(found: Mapping[float, float], device: torch.device) -> float:
    """Return the factor that found outliers best, of equally good ones the nearest to one; every process calls it."""
    best = max(found, key=lambda factor: (found[factor], -abs(math.log(factor))))
    return _agreed(best, device)


def describe_tried(found: Mapping[float, float], start: float) -> dict[str, float]:
    """Return what was found by the length-scale that it was found with."""
    return {f"{start * factor:.3g}": round(aupr, 6) for factor, aupr in found.items()}


def _features(method: LRFormer, split: Split, *, like: DeviceBatches) -> Float[Tensor, "b e"]:
    batches = validation_batches(split, image_size=like.image_size, device=like.device)
    return torch.cat([method.features(batch.inputs).float() for batch in batches.epoch()])


def _scores(head: RandomFeaturePosterior, features: Tensor) -> Float[Tensor, " b"]:
    """Return one variance for each input; with one for each class, their mean, as predictions are ranked."""
    variance = head.variance(features)
    return (variance if variance.ndim == 1 else variance.mean(-1)).double().cpu()


def _agreed(factor: float, device: torch.device) -> float:
    """Return what the first process has chosen: rounding may differ between them."""
    index = torch.tensor(FACTORS.index(factor), device=device)
    take_from_first(index)
    return FACTORS[int(index)]
