"""Evaluations as `evaluate` keeps them, made of drawn logits: no model, no training."""

import dataclasses
from pathlib import Path

import numpy as np
import torch

from lrformer.core import make_generator, to_record
from lrformer.evaluation import EvaluationConfig, Predictions, Results, from_arrays
from lrformer.methods import AbstentionRule
from lrformer.training import RunConfig

NUM_CLASSES = 3
FEW = EvaluationConfig(num_draws=20)


def made_logits(number: int, *, seed: int, signal: float) -> tuple[np.ndarray, np.ndarray]:
    """Return labels, which no seed changes, and logits that lean to them by `signal`."""
    labels = torch.arange(number) % NUM_CLASSES
    generator = make_generator(seed)
    logits = torch.randn(number, NUM_CLASSES, dtype=torch.float64, generator=generator)
    logits[torch.arange(number), labels] += signal
    return logits.numpy(), labels.numpy()


def made_predictions(
    name: str,
    number: int,
    *,
    seed: int,
    signal: float = 2.0,
    is_labeled: bool = True,
    default_score: str = "entropy",
    order: np.ndarray | None = None,
) -> Predictions:
    """Return predictions; without labels those of an unknown set, whose logits lean to no class."""
    logits, labels = made_logits(number, seed=seed, signal=signal if is_labeled else 0.0)
    if order is not None:
        logits, labels = logits[order], labels[order]
    probs = torch.from_numpy(logits).softmax(-1).numpy()
    return from_arrays(
        probs,
        labels if is_labeled else None,
        name=name,
        logits=logits,
        default_score=default_score,
    )


def keep_evaluation(
    folder: Path,
    config: RunConfig,
    *,
    seed: int = 0,
    signal: float = 2.0,
    method: str = "deterministic",
    number: int = 60,
    unknown: dict[str, int] | None = None,
    test_set: str = "photos/test",
    default_score: str = "entropy",
    settings: EvaluationConfig = FEW,
    is_calibrated: bool = True,
    order: np.ndarray | None = None,
) -> Path:
    """Return `folder` with what the evaluation of a run would keep in it.

    Args:
        config: of any run; its seed is set.
        unknown: the number of samples of every unknown set.
    """
    made = {"default_score": default_score}
    test = made_predictions(test_set, number, seed=seed, signal=signal, order=order, **made)
    ood = {
        name: made_predictions(name, count, seed=100 + seed, is_labeled=False, **made)
        for name, count in (unknown if unknown is not None else {"far": 40}).items()
    }
    threshold = float(np.quantile(test.uncertainty(), 0.9))
    rule = AbstentionRule(score=default_score, threshold=threshold)
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, seed=seed, method=method)
    )
    about = {
        "run": folder.name,
        "method": method,
        "seed": seed,
        "temperature": f"1.1{'' if is_calibrated else ' (left out)'}",
        "config": to_record(config),
    }
    results = Results.of(
        test, ood=ood, rule=rule if is_calibrated else None, config=settings, about=about
    )
    return results.save(folder)
