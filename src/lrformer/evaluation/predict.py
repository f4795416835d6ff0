"""Predict over a whole data set, batch by batch, and keep what is needed of it."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from lrformer.core import ConfigError, make_generator
from lrformer.data import DeviceBatches, Split
from lrformer.evaluation.predictions import Predictions
from lrformer.heads import Predictive

DEFAULT_BATCH_SIZE = 256

Predict = Callable[[Tensor, torch.Generator | None], Predictive]
Advance = Callable[[int], None]


@torch.no_grad()
def predict_batches(
    predict: Predict,
    batches: Iterable[tuple[Shaped[Tensor, "b ..."], Shaped[Tensor, " b"] | None]],
    *,
    name: str,
    default_score: str = "entropy",
    class_names: tuple[str, ...] = (),
    generator: torch.Generator | None = None,
    advance: Advance | None = None,
) -> Predictions:
    """Return the predictions for batches of inputs and labels; only their arrays are kept in memory.

    Args:
        predict: `method.predict`, or anything that takes a batch and a generator.
        batches: inputs on the device of the method, with labels or None.
        generator: for methods that draw samples; every batch sees the same draws, so that where an input stands
            makes no difference to methods that draw functions.
        advance: called with the size of each batch that is done, for a progress bar.
    """
    probs, norms, labels = [], [], []
    scores: dict[str, list[np.ndarray]] = {}
    start = None if generator is None else generator.get_state()
    for x, y in batches:
        if generator is not None and start is not None:
            generator.set_state(start)
        predictive = wide(predict(x, generator))
        probs.append(_array(predictive.probs).astype(np.float32))
        norms.append(_array(predictive.logits.norm(dim=-1)))
        for score in predictive.scores:
            scores.setdefault(score, []).append(_array(predictive.uncertainty(score)))
        if y is not None:
            labels.append(y.cpu().numpy())
        if advance is not None:
            advance(len(x))
    if not probs:
        raise ConfigError(f"{name} is empty; there is nothing to predict.")
    return Predictions(
        name=name,
        probs=np.concatenate(probs),
        labels=np.concatenate(labels) if labels else None,
        scores={score: np.concatenate(parts) for score, parts in scores.items()},
        default_score=default_score,
        logit_norm=np.concatenate(norms),
        class_names=class_names,
    )


def predict_split(
    predict: Predict,
    split: Split,
    *,
    name: str | None = None,
    is_labeled: bool = True,
    default_score: str = "entropy",
    class_names: tuple[str, ...] | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    device: torch.device | str = "cpu",
    image_size: int | None = None,
    seed: int = 0,
    advance: Advance | None = None,
) -> Predictions:
    """Return the predictions for a split, in its order; its own mean and std normalize it.

    Args:
        is_labeled: False for an OOD set, whose labels say nothing.
        class_names: of the model; those of the split by default.
        image_size: side to which the images are scaled on the device; None keeps theirs.
        seed: of the draws of a sampling method.
    """
    source = DeviceBatches(split, batch_size=batch_size, device=device, image_size=image_size)
    names = split.class_names if class_names is None else class_names
    return predict_batches(
        predict,
        ((batch.inputs, batch.labels if is_labeled else None) for batch in source.epoch()),
        name=name or split.name,
        default_score=default_score,
        class_names=names,
        generator=make_generator(seed, device),
        advance=advance,
    )


def wide(predictive: Predictive) -> Predictive:
    """Return the prediction in float64.

    In float32 every confidence above 1 - 6e-8 is the same, and a detector could not tell such samples apart.
    """

    def double(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.detach().double()

    return Predictive(
        logits=predictive.logits.detach().double(),
        variance=double(predictive.variance),
        samples=double(predictive.samples),
        distances=double(predictive.distances),
    )


def _array(values: Tensor) -> np.ndarray:
    return values.cpu().numpy()
