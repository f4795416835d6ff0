"""Predict over data sets, score what was predicted, and keep both in records."""

from lrformer.evaluation.classes import ClassFigures
from lrformer.evaluation.comparison import ComparedSide, Comparison, compare_runs
from lrformer.evaluation.comparison_figures import ComparedFigure
from lrformer.evaluation.conventions import EvaluationConfig
from lrformer.evaluation.files import FilePrediction, find_files, predict_files
from lrformer.evaluation.gallery import Gallery, GalleryEntry, pick_images
from lrformer.evaluation.measure import CORRUPTED_MEAN, evaluate
from lrformer.evaluation.predict import predict_batches, predict_split
from lrformer.evaluation.predictions import Predictions, from_arrays
from lrformer.evaluation.results import Results
from lrformer.evaluation.run_data import load_ood_split, load_test_split
from lrformer.evaluation.run_evaluation import evaluate_run, predict_run
from lrformer.evaluation.scores import EvaluatedSet, Metric, Scores, load_scores, save_scores
from lrformer.evaluation.seeds import SeedMetric, SeedScores, over_seeds

__all__ = [
    "CORRUPTED_MEAN",
    "ClassFigures",
    "ComparedFigure",
    "ComparedSide",
    "Comparison",
    "EvaluatedSet",
    "EvaluationConfig",
    "FilePrediction",
    "Gallery",
    "GalleryEntry",
    "Metric",
    "Predictions",
    "Results",
    "Scores",
    "SeedMetric",
    "SeedScores",
    "compare_runs",
    "evaluate",
    "evaluate_run",
    "find_files",
    "from_arrays",
    "load_ood_split",
    "load_scores",
    "load_test_split",
    "over_seeds",
    "pick_images",
    "predict_batches",
    "predict_files",
    "predict_run",
    "predict_split",
    "save_scores",
]
