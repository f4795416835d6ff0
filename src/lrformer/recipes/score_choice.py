"""Which score finds unknown inputs: chosen on outliers made of validation images, never on a real unknown set."""

import dataclasses
from collections.abc import Sequence
from statistics import fmean

from lrformer.data.outliers import OUTLIER_KINDS, make_outliers
from lrformer.evaluation import predict_run
from lrformer.metrics import detection_metrics
from lrformer.recipes.table import PAPER_SCORE
from lrformer.training import Run
from lrformer.training.splits import load_splits

# By score, then by kind of outliers: AUPR, outliers positive.
Found = dict[str, dict[str, float]]


def find_outliers(
    run: Run, *, is_calibrated: bool, batch_size: int, root: str | None = None
) -> Found:
    """Return how well every score of a run finds outliers made of the images it was validated on.

    Args:
        root: where prepared data lie now; None is where they lay when the run was trained.
    """
    train = run.config.train
    _, known = load_splits(dataclasses.replace(train, root=root or train.root))
    if not known.is_image:
        return {}
    settings = {"is_calibrated": is_calibrated, "batch_size": batch_size, "is_labeled": False}
    inside = predict_run(run, known, **settings)
    found: Found = {score: {} for score in inside.scores}
    for kind in OUTLIER_KINDS:
        outside = predict_run(run, make_outliers(known, kind, seed=train.seed), **settings)
        for score, values in inside.scores.items():
            figures = detection_metrics(values, outside.scores[score])
            found[score][kind] = round(figures.aupr_ood_positive, 6)
    return found


def choose_score(runs: Sequence[Found]) -> str:
    """Return the score with the best mean over kinds and runs; the paper's where nothing is known."""
    shared = [score for score in (runs[0] if runs else {}) if all(score in run for run in runs)]
    if not shared:
        return PAPER_SCORE
    means = {score: fmean(v for run in runs for v in run[score].values()) for score in shared}
    return max(shared, key=lambda score: means[score])
