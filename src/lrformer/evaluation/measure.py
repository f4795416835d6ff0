"""From predictions to scores: every metric, for every score, on every set that is named."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lrformer.core import ConfigError, make_generator
from lrformer.evaluation.classes import class_figures
from lrformer.evaluation.conventions import EvaluationConfig
from lrformer.evaluation.predictions import Predictions
from lrformer.evaluation.scores import EvaluatedSet, Metric, Scores
from lrformer.evaluation.words import ACCEPTED
from lrformer.methods import AbstentionRule
from lrformer.metrics import (
    Interval,
    bootstrap_classification,
    bootstrap_detection_scores,
    bootstrap_means,
    bootstrap_selective_scores,
)
from lrformer.metrics.inputs import Array, as_probs

CORRUPTED_MEAN = "corrupted (mean)"
# Scores are in float64 here, and a threshold is one of those of validation, in float32.
ROUNDING = 1e-6


def evaluate(
    predictions: Predictions,
    *,
    ood: Mapping[str, Predictions] | None = None,
    made: Mapping[str, Predictions] | None = None,
    corrupted: Mapping[str, Predictions] | None = None,
    rule: AbstentionRule | None = None,
    config: EvaluationConfig | None = None,
    about: dict[str, Any] | None = None,
) -> Scores:
    """Return every metric of a test set, of OOD sets and of corrupted versions of the test set.

    Args:
        predictions: for the in-distribution test set, with labels.
        ood: by the names under which they are reported; labels are not looked at.
        made: the same as `ood`, of sets that were made and are no real unknown.
        corrupted: the same, with labels.
        rule: the threshold kept with the model, of its default score, as `fit_abstention` finds it on validation; without
            it nothing is said of how much is accepted.
        about: what was run, kept in the record for its reader.
    """
    config = config or EvaluationConfig()
    for name, given in (("ood", ood), ("made", made), ("corrupted", corrupted)):
        _check_mapping(name, given)
    ood, made, corrupted = dict(ood or {}), dict(made or {}), dict(corrupted or {})
    _check(predictions, [*ood.items(), *made.items()], corrupted)
    _check_rule(rule, predictions)
    test = predictions.name
    metrics = list(_labeled_metrics(test, predictions, config))
    metrics += _accepted(test, predictions, rule, config)
    for name, outside in {**ood, **made}.items():
        metrics += _confidence_metrics(name, outside, config)
        metrics += _detection(name, predictions, outside, config)
        metrics += _accepted(name, outside, rule, config)
    shifted: list[Metric] = []
    for name, outside in corrupted.items():
        shifted += _labeled_metrics(name, outside, config)
        shifted += _detection(name, predictions, outside, config)
        shifted += _accepted(name, outside, rule, config)
    sets = [_set(test, "id", predictions)]
    sets += [_set(name, "ood", entry) for name, entry in ood.items()]
    sets += [_set(name, "made", entry) for name, entry in made.items()]
    sets += [_set(name, "corrupted", entry) for name, entry in corrupted.items()]
    if corrupted:
        total = sum(map(len, corrupted.values()))
        sets.append(EvaluatedSet(name=CORRUPTED_MEAN, role="mean", num_samples=total))
    return Scores(
        sets=tuple(sets),
        metrics=(*metrics, *shifted, *_mean_over_sets(shifted, num_sets=len(corrupted))),
        default_score=predictions.default_score,
        given_scores=tuple(predictions.scores),
        num_classes=predictions.probs.shape[1],
        config=config,
        conventions=config.in_words(has_rule=rule is not None, has_made=bool(made)),
        about=about or {},
        classes=class_figures(predictions, level=config.level),
        rule=rule,
    )


def _set(name: str, role: str, predictions: Predictions) -> EvaluatedSet:
    return EvaluatedSet(name=name, role=role, num_samples=len(predictions))


def _check_mapping(name: str, given: object) -> None:
    """Raise unless sets are given as predictions by name."""
    rule = f"must be predictions by their names; give {name}={{'NAME': predictions}}, of predict_run or from_arrays."
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} (a {type(given).__name__}) {rule}")
    for key, entry in given.items():
        if not isinstance(entry, Predictions):
            raise ConfigError(f"{name}['{key}'] (a {type(entry).__name__}) {rule}")


def _check_rule(rule: AbstentionRule | None, test: Predictions) -> None:
    """Raise unless a threshold is of the score by which these predictions are ranked."""
    if rule is None:
        return
    if not isinstance(rule, AbstentionRule):
        raise ConfigError(
            f"rule (a {type(rule).__name__}) must be an AbstentionRule, as lrformer.methods.fit_abstention returns it."
        )
    if rule.score != test.default_score:
        raise ConfigError(
            f"rule.score ('{rule.score}') must be the default score of {test.name} ('{test.default_score}'); give "
            f"default_score='{rule.score}' to the predictions."
        )


def _check(
    test: Predictions,
    unknown: Sequence[tuple[str, Predictions]],
    corrupted: Mapping[str, Predictions],
) -> None:
    """Raise before the first draw if a set cannot be compared with the test set."""
    for name, entry in {test.name: test, **corrupted}.items():
        if entry.labels is None:
            raise ConfigError(f"{name} has no labels; only an OOD set can be evaluated without.")
    taken = [test.name, *(name for name, _ in unknown), *corrupted, CORRUPTED_MEAN]
    for name in taken:
        if taken.count(name) > 1:
            raise ConfigError(f"two sets are named '{name}'; give each a name of its own.")
    for name, entry in [*unknown, *corrupted.items()]:
        if entry.probs.shape[1] != test.probs.shape[1]:
            raise ConfigError(
                f"{name} has probabilities of {entry.probs.shape[1]} classes but {test.name} of "
                f"{test.probs.shape[1]}; both must come from the same model."
            )
        missing = [score for score in test.scores if score not in entry.scores]
        if missing:
            raise ConfigError(
                f"{name} lacks the score {missing[0]} that {test.name} has; predict both alike."
            )


def generator_of(config: EvaluationConfig, *names: str) -> torch.Generator:
    """Return the generator of one set and purpose: its intervals do not depend on what else is evaluated."""
    # All in one hash: torch's generator on the CPU looks at the low 32 bits of a seed only.
    return make_generator(zlib.crc32("\0".join([str(config.seed), *names]).encode()))


def _labeled_metrics(
    name: str, predictions: Predictions, config: EvaluationConfig
) -> Iterable[Metric]:
    """Yield the metrics of probabilities against labels, and of ranking by each score."""
    assert predictions.labels is not None
    bootstrap = {"num_draws": config.num_draws, "level": config.level}
    yield from _named(
        name,
        None,
        bootstrap_classification(
            predictions.probs,
            predictions.labels,
            generator=generator_of(config, name),
            num_bins=config.num_bins,
            threshold=config.threshold,
            **bootstrap,
        ),
    )
    yield from _named(name, None, _mean_intervals(name, _norms(predictions), config))
    ranked = bootstrap_selective_scores(
        predictions.scores,
        predictions.probs,
        predictions.labels,
        generator=generator_of(config, name, "selective"),
        coverages=config.coverages,
        **bootstrap,
    )
    for score, intervals in ranked.items():
        yield from _named(name, score, intervals)


def _detection(
    name: str, inside: Predictions, outside: Predictions, config: EvaluationConfig
) -> Iterable[Metric]:
    """Yield how well each score tells `outside` from `inside`."""
    found = bootstrap_detection_scores(
        inside.scores,
        outside.scores,
        generator=generator_of(config, name, "detection"),
        num_draws=config.num_draws,
        level=config.level,
    )
    for score, intervals in found.items():
        yield from _named(name, score, intervals)


def _accepted(
    name: str, predictions: Predictions, rule: AbstentionRule | None, config: EvaluationConfig
) -> list[Metric]:
    """Return the share of a set that the kept threshold lets pass, where there is one."""
    if rule is None:
        return []
    intervals = bootstrap_means(
        {ACCEPTED: accepted_by(rule, predictions)},
        generator=generator_of(config, name, "accepted"),
        num_draws=config.num_draws,
        level=config.level,
    )
    return _named(name, rule.score, intervals)


def accepted_by(rule: AbstentionRule, predictions: Predictions) -> Float[np.ndarray, " b"]:
    """Return 1 for each sample that the kept threshold lets pass, and 0 for the others."""
    bound = rule.threshold + ROUNDING * abs(rule.threshold)
    return (predictions.uncertainty(rule.score) <= bound).astype(float)


def overconfident(name: str, outside: Predictions, *, threshold: float) -> Float[Tensor, " b"]:
    """Return 1 for each sample of an unknown set of which the model is surer than `threshold`, and 0 for the others."""
    confidence = as_probs(outside.probs, name=f"{name}: probs").amax(dim=1)
    return (confidence > threshold).double()


def _confidence_metrics(
    name: str, outside: Predictions, config: EvaluationConfig
) -> Iterable[Metric]:
    """Yield how sure the model is of a set on which nothing is right (def. overconfidence)."""
    confidence = as_probs(outside.probs, name=f"{name}: probs").amax(dim=1)
    values = {
        "overconfidence_rate": overconfident(name, outside, threshold=config.threshold),
        "overconfidence_mean_confidence": confidence,
        **_norms(outside),
    }
    return _named(name, None, _mean_intervals(name, values, config))


def _norms(predictions: Predictions) -> dict[str, Array]:
    """Return the norms of the logits under the metric's name, where they are known."""
    if predictions.logit_norm is None:
        return {}
    return {"logit_norm": predictions.logit_norm}


def _mean_intervals(
    name: str, values: Mapping[str, Array], config: EvaluationConfig
) -> dict[str, Interval]:
    """Return the mean of each of `values` with its bootstrap interval, from draws of their own."""
    return bootstrap_means(
        values,
        generator=generator_of(config, name, "means"),
        num_draws=config.num_draws,
        level=config.level,
    )


def _named(dataset: str, score: str | None, intervals: Mapping[str, Interval]) -> list[Metric]:
    return [
        Metric(dataset=dataset, score=score, name=name, value=i.value, low=i.low, high=i.high)
        for name, i in intervals.items()
    ]


def _mean_over_sets(metrics: list[Metric], *, num_sets: int) -> list[Metric]:
    """Return the mean over the corrupted sets of every metric that all of them have."""
    groups: dict[tuple[str, str | None], list[float]] = {}
    for metric in metrics:
        groups.setdefault((metric.name, metric.score), []).append(metric.value)
    return [
        Metric(dataset=CORRUPTED_MEAN, name=name, score=score, value=sum(values) / num_sets)
        for (name, score), values in groups.items()
        if len(values) == num_sets
    ]
