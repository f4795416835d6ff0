"""One model on digits of which some are unknown: trained, evaluated, and timed."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lrformer.evaluation import (
    EvaluationConfig,
    Scores,
    evaluate_run,
    load_ood_split,
    load_scores,
    load_test_split,
)
from lrformer.evaluation.run_data import OTHER_CLASSES
from lrformer.evaluation.scores import is_evaluated
from lrformer.training import RuntimeConfig, TrainConfig, load_run, train

NUM_TIMED_PASSES = 10


def run_digits(config: TrainConfig, folder: Path) -> None:
    """Train and evaluate one run in `folder`, on the CPU; what is finished there is not done again."""
    runtime = RuntimeConfig(device="cpu", quiet=True, validate_every=max(1, config.epochs // 10))
    run = train(config, folder, runtime=runtime)
    if not is_evaluated(folder):
        evaluate_run(run, ood=[OTHER_CLASSES], config=EvaluationConfig()).save(folder)


def digits_figures(folder: Path, *, score: str) -> dict[str, float]:
    """Return the figures of an evaluated run; unknown digits are found by `score`."""
    scores: Scores = load_scores(folder)
    unknown = scores.select(dataset=OTHER_CLASSES, score=score)
    return {
        "accuracy": scores("accuracy"),
        "ece": scores("ece_equal_width"),
        "nll": scores("nll"),
        "auroc": unknown["auroc"].value,
        "aupr": unknown["aupr_ood_positive"].value,
    }


def measure_speed(folders: Sequence[Path], *, num_passes: int = NUM_TIMED_PASSES) -> list[float]:
    """Return how many images each run predicts in a second on one core, uncertainty included.

    The runs take turns, so that a busy moment of the machine meets all of them; the fastest pass counts.
    """
    runs = [load_run(folder) for folder in folders]
    config = runs[0].config
    splits = (load_test_split(config), load_ood_split(config, OTHER_CLASSES)[1])
    images = torch.from_numpy(np.concatenate([np.asarray(split.x) for split in splits]))
    seconds: list[list[float]] = [[] for _ in runs]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(num_passes):
            for run, taken in zip(runs, seconds, strict=True):
                started = time.perf_counter()
                run.predict(images).uncertainty(run.decision.score)
                taken.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(num_threads)
    return [len(images) / min(taken) for taken in seconds]
