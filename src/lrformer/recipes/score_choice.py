"""How well the scores of a finished run find unknown inputs: outliers made of its validation images, never a real set."""

import dataclasses

from lrformer.evaluation import predict_run
from lrformer.training import Run
from lrformer.training.score_choice import Found
from lrformer.training.score_choice import find_outliers as find_by_scores
from lrformer.training.splits import load_splits


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
    return find_by_scores(
        predict_run(run, known, **settings).scores,
        lambda split: predict_run(run, split, **settings).scores,
        known,
        seed=train.seed,
    )
