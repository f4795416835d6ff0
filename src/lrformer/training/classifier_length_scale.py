"""The length-scale of a posterior on somebody's classifier, chosen as runs choose theirs: on made outliers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.data.outliers import make_input_outliers
from lrformer.heads import RandomFeatureGPConfig, RandomFeaturePosterior
from lrformer.methods.base import Loader, check_repeatable
from lrformer.training.length_scale import (
    FEATURES_AT_ONCE,
    KINDS,
    NUM_VALIDATION_IMAGES,
    LengthScaleChoice,
    best_factor,
    describe_tried,
    try_factors,
)

_WAY_OUT = "Leave validation out, and give a length_scale by config."


@dataclass(frozen=True, kw_only=True)
class KnownInputs:
    """Validation images as the model takes them, with the classes by which they are mixed."""

    x: Float[Tensor, "b c h w"]
    y: Int[Tensor, " b"]


def check_choice(config: RandomFeatureGPConfig) -> None:
    """Raise where the length-scale is not measured on the scale of the features."""
    if config.feature_scale != "calibrate":
        raise ConfigError(
            f"validation chooses a length-scale with feature_scale='calibrate', and config has '{config.feature_scale}'. "
            "Leave one of the two out."
        )


def read_known(validation: Loader, device: torch.device) -> KnownInputs:
    """Return the first validation images of a loader, or raise where no outliers can be made of what it gives."""
    check_repeatable(validation, "validation")
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    for batch in validation:
        pair = batch if isinstance(batch, tuple | list) and len(batch) > 1 else None
        x, y = (None, None) if pair is None else pair[:2]
        if isinstance(batch, Mapping) or not (isinstance(x, Tensor) and isinstance(y, Tensor)):
            raise ConfigError(
                f"validation must give pairs of images and labels; a batch is a {type(batch).__name__}. {_WAY_OUT}"
            )
        if x.ndim != 4 or not x.is_floating_point() or y.shape != x.shape[:1]:
            raise ConfigError(
                f"validation gives inputs of shape {tuple(x.shape)} ({x.dtype}) and labels of shape {tuple(y.shape)}; outliers "
                f"are made of images (b, c, h, w) with one class each. {_WAY_OUT}"
            )
        xs.append(x.to(device))
        ys.append(y.cpu())
        if sum(map(len, ys)) >= NUM_VALIDATION_IMAGES:
            break
    if not xs:
        raise ConfigError("validation is empty; it must give at least one batch.")
    return KnownInputs(
        x=torch.cat(xs)[:NUM_VALIDATION_IMAGES], y=torch.cat(ys)[:NUM_VALIDATION_IMAGES]
    )


def choose_for_classifier(
    head: RandomFeaturePosterior,
    trained: Float[Tensor, "n e"],
    known: KnownInputs,
    *,
    features: Callable[[Tensor], Tensor],
    add: Callable[[RandomFeaturePosterior, Tensor], None],
) -> LengthScaleChoice:
    """Return the length-scale with which the variance finds outliers made of `known` best.

    Args:
        head: calibrated on training features; it stays as it is.
        trained: training features, the same in every process.
        features: what the classifier sees of a batch of inputs.
        add: adds a batch of training features to the precision of a head.
    """

    def seen(x: Tensor) -> Tensor:
        return torch.cat([features(part).float() for part in x.split(FEATURES_AT_ONCE)])

    outside = [seen(make_input_outliers(known.x, known.y, kind)) for kind in KINDS]
    found = try_factors(head, trained, seen(known.x), outside, add=add)
    start = head.config.length_scale
    return LengthScaleChoice(
        length_scale=start * best_factor(found, trained.device), tried=describe_tried(found, start)
    )
