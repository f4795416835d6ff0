"""Scores are judged by outliers made of the images on which a run was validated."""

import dataclasses

import numpy as np
from sklearn.metrics import average_precision_score

from lrformer.data.outliers import OUTLIER_KINDS, make_outliers
from lrformer.evaluation import predict_run
from lrformer.recipes.score_choice import find_outliers
from lrformer.training import load_run
from lrformer.training.splits import load_splits
from tests.evaluation.made_run import write_image_folder, write_run


def test_outliers_are_drawn_by_the_seed_of_the_run_and_found_as_sklearn_says(tmp_path):
    data = write_image_folder(tmp_path / "data")
    made = load_run(write_run(tmp_path / "run", data, root=tmp_path / "cache"))
    train = dataclasses.replace(made.config.train, seed=3)
    run = dataclasses.replace(made, config=dataclasses.replace(made.config, train=train))
    found = find_outliers(run, is_calibrated=True, batch_size=16)
    known = load_splits(train)[1]

    def scores(split):
        return predict_run(run, split, is_calibrated=True, is_labeled=False).scores

    for kind in OUTLIER_KINDS:
        inside, outside = scores(known), scores(make_outliers(known, kind, seed=3))
        for name in ("msp", "energy"):
            expected = average_precision_score(
                np.repeat([0, 1], len(known)), np.concatenate([inside[name], outside[name]])
            )
            assert abs(found[name][kind] - expected) < 2e-6, (kind, name)


def test_prepared_images_that_moved_are_taken_from_where_they_are(tmp_path):
    data = write_image_folder(tmp_path / "data")
    run = load_run(write_run(tmp_path / "run", data, root=tmp_path / "cache"))
    before = find_outliers(run, is_calibrated=True, batch_size=16)
    (tmp_path / "cache").rename(tmp_path / "moved")
    root = str(tmp_path / "moved")
    assert find_outliers(run, is_calibrated=True, batch_size=16, root=root) == before
    assert not (tmp_path / "cache").exists()
