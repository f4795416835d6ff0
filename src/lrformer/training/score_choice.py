"""The score of a run's threshold: the method's own, another one, or the one that finds made outliers best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

from lrformer.core import ConfigError
from lrformer.data import DeviceBatches, Split
from lrformer.data.outliers import NUM_BLOCKS, OUTLIER_KINDS, make_outliers
from lrformer.heads import Predictive
from lrformer.methods import Method, Temperature
from lrformer.metrics import detection_metrics
from lrformer.training.config import CHOSEN_SCORE, TrainConfig
from lrformer.training.splits import validation_batches
from lrformer.training.validation import predict_split

# Outliers of every kind are held in memory, each as large as the images they are made of.
NUM_VALIDATION_IMAGES = 8192

# By score, then by kind of outliers: AUPR, outliers positive.
Found = dict[str, dict[str, float]]
Scores = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class ScoreChoice:
    """What was tried, by how well it found made outliers (AUPR, mean over their kinds), and what was taken."""

    score: str
    tried: dict[str, float]


def check_score(config: TrainConfig, method: Method, split: Split) -> None:
    """Raise before training where `method` does not give the score, or no outliers can be made to choose one by."""
    if config.score is None:
        return
    if config.score != CHOSEN_SCORE:
        if config.score not in method.scores:
            raise ConfigError(
                f"score ('{config.score}') is not given by method '{config.method}' with these settings; it gives: "
                f"{', '.join(method.scores)}."
            )
        return
    way_out = f"Name a score: {', '.join(method.scores)}."
    needs = f"score '{CHOSEN_SCORE}' needs"
    if not split.is_image:
        raise ConfigError(
            f"{needs} images, of which outliers can be made; {split.name} holds points. {way_out}"
        )
    side = min(split.x.shape[1:3])
    if side < NUM_BLOCKS:
        raise ConfigError(
            f"{needs} images of at least {NUM_BLOCKS} pixels a side; those of {split.name} have {side}. {way_out}"
        )
    if len(np.unique(split.y)) < 2:
        raise ConfigError(
            f"{needs} images of two classes, which are mixed; those of {split.name} are of one. {way_out}"
        )


def choose_score_of_run(
    config: TrainConfig,
    method: Method,
    known: DeviceBatches,
    inside: Predictive,
    temperature: Temperature,
) -> ScoreChoice | None:
    """Return the score that finds outliers made of validation images best, or None where it is not to be chosen.

    Args:
        inside: the prediction for every sample of `known`, before the temperature.
    """
    if config.score != CHOSEN_SCORE:
        return None
    number = len(known.split)
    rows = np.sort(np.random.default_rng(0).permutation(number)[:NUM_VALIDATION_IMAGES])

    def predict(split: Split) -> Scores:
        batches = validation_batches(split, image_size=known.image_size, device=known.device)
        return _scores(temperature(predict_split(method, batches)[0]))

    found = find_outliers(
        {score: values[rows] for score, values in _scores(temperature(inside)).items()},
        predict,
        known.split if len(rows) == number else known.split.take(rows),
        seed=config.seed,
    )
    return ScoreChoice(score=choose_score([found]), tried=mean_found(found))


def find_outliers(
    inside: Scores, predict: Callable[[Split], Scores], known: Split, *, seed: int
) -> Found:
    """Return how well every score finds outliers made of the images `known`, of which `inside` has the scores.

    Args:
        predict: gives the scores of other images.
        seed: of the outliers.
    """
    found: Found = {score: {} for score in inside}
    for kind in OUTLIER_KINDS:
        outside = predict(make_outliers(known, kind, seed=seed))
        for score, values in inside.items():
            figures = detection_metrics(values, outside[score])
            found[score][kind] = round(figures.aupr_ood_positive, 6)
    return found


def choose_score(runs: Sequence[Found]) -> str:
    """Return the score with the best mean over kinds and runs; the paper's where nothing is known."""
    shared = [score for score in (runs[0] if runs else {}) if all(score in run for run in runs)]
    if not shared:
        return Method.default_score
    means = {score: fmean(v for run in runs for v in run[score].values()) for score in shared}
    return max(shared, key=lambda score: means[score])


def mean_found(found: Found) -> dict[str, float]:
    """Return the mean over kinds for every score."""
    return {score: round(fmean(kinds.values()), 6) for score, kinds in found.items()}


def describe_choice(choice: ScoreChoice) -> str:
    """Return what was chosen, beside what else there was, in one line."""
    others = ", ".join(
        f"{score} {aupr:.3f}"
        for score, aupr in sorted(choice.tried.items(), key=lambda item: -item[1])
        if score != choice.score
    )
    return (
        f"score '{choice.score}' finds outliers made of validation images best: AUPR {choice.tried[choice.score]:.3f} "
        f"({others})"
    )


def _scores(predictive: Predictive) -> Scores:
    """Return every score in float64, as an evaluation does."""
    wide = predictive.to(torch.float64)
    return {score: wide.uncertainty(score).numpy() for score in wide.scores}
