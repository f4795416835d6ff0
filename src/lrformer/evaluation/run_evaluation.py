"""From a run folder to results: every set is predicted as the run predicts, scored, and looked at."""

import dataclasses
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrformer._version import __version__
from lrformer.core import ConfigError, choose_device, make_generator, to_record
from lrformer.data import Split, corrupt_split
from lrformer.evaluation.conventions import EvaluationConfig
from lrformer.evaluation.gallery import Gallery, pick_images
from lrformer.evaluation.made_sets import MADE, made_sets
from lrformer.evaluation.measure import evaluate
from lrformer.evaluation.predict import DEFAULT_BATCH_SIZE, Advance, predict_batches
from lrformer.evaluation.predictions import Predictions
from lrformer.evaluation.results import Results
from lrformer.evaluation.run_data import (
    check_samples,
    check_unknown,
    default_ood,
    describe_samples,
    known_name,
    load_ood_split,
    load_test_split,
    parse_corruptions,
    parse_place,
    seen_part,
)
from lrformer.evaluation.scores import EVALUATED_ON, Scores
from lrformer.training import Run, load_run
from lrformer.training.journal import read_log
from lrformer.training.metrics_file import read_metrics
from lrformer.training.run_folder import describe_temperature

# What `about` says of the temperature, and how that ends where it was left out.
TEMPERATURE = "temperature"
LEFT_OUT = " (left out)"
_FITTED = "temperature and threshold were fitted on"
_SEEN = {
    "train": "the run was trained on this one",
    "val": f"{_FITTED} this one",
    "train+val": f"the run was trained on most of this one, {_FITTED} the rest",
}


def predict_run(
    run: Run,
    split: Split,
    *,
    name: str | None = None,
    is_labeled: bool = True,
    is_calibrated: bool = True,
    batch_size: int = DEFAULT_BATCH_SIZE,
    seed: int = 0,
    advance: Advance | None = None,
) -> Predictions:
    """Return the predictions of a run for a split, through the run's own normalization, whatever the split's.

    Args:
        is_labeled: False for an OOD set, whose labels say nothing.
        is_calibrated: False leaves the temperature out that was fitted on validation.
        seed: of the draws of a sampling method.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size ({batch_size}) must be at least 1.")

    def batches() -> Iterator[tuple[Tensor, Tensor | None]]:
        for start in range(0, len(split), batch_size):
            rows = np.arange(start, min(start + batch_size, len(split)))
            labels = torch.from_numpy(np.array(split.y[rows])) if is_labeled else None
            yield torch.from_numpy(np.array(split.x[rows])), labels

    return predict_batches(
        lambda x, g: run.predict(x, generator=g, is_calibrated=is_calibrated),
        batches(),
        name=name or split.name,
        default_score=run.decision.score,
        class_names=run.class_names,
        generator=make_generator(seed, run.device),
        advance=advance,
    )


def evaluate_run(
    run: Run | str | Path,
    *,
    data: str | None = None,
    ood: Sequence[str] | None = None,
    corruptions: Sequence[str] = (),
    config: EvaluationConfig | None = None,
    is_calibrated: bool = True,
    device: str = "auto",
    batch_size: int = DEFAULT_BATCH_SIZE,
    root: str | Path | None = None,
    skip_unreadable: bool = False,
    advance: Advance | None = None,
) -> Results:
    """Return the results of a run on its test set, on unknown sets and on corrupted versions of the test set.

    Args:
        run: a run or its folder.
        data: other labeled data to measure on, `photos/` or `photos/:val`; None is the test split of the run's own.
        ood: data sets or folders, `["svhn", "photos/", "mine:ood-faces"]`; None takes what comes with the run's data.
            `made` stands for outliers made of the test images, which are kept apart from real unknown sets.
        corruptions: `["all"]`, `["fog", "gaussian_noise:3"]`.
        is_calibrated: False leaves the temperature out that was fitted on validation, as in the paper's tables.
        root: where prepared data are; that of the run by default.
        skip_unreadable: leave out image files that cannot be decoded, and say so in a line, in place of an error. A run
            that was trained so is always evaluated so.
        advance: called with the number of samples done, for a progress bar.
    """
    for name, given in (("ood", ood), ("corruptions", corruptions)):
        if isinstance(given, str):
            raise ConfigError(f"{name} ('{given}') must be a list of names; give ['{given}'].")
    wanted = parse_corruptions(corruptions)
    if not isinstance(run, Run):
        run = load_run(run, device=choose_device(device))
    specs = default_ood(run.config, data=data, root=root) if ood is None else list(ood)
    asked = run.config
    if skip_unreadable:
        asked = dataclasses.replace(
            asked, train=dataclasses.replace(asked.train, skip_unreadable=True)
        )
    test = load_test_split(asked, data=data, root=root)
    if wanted and not test.is_image:
        raise ConfigError(f"{test.name} holds points, not images; only images can be corrupted.")
    # Everything is opened before anything is predicted: a wrong name must not cost the work before it.
    making = made_sets(test) if MADE in specs else {}
    unknown: dict[str, Split] = {}
    wrong: list[ConfigError] = []
    for spec in (spec for spec in specs if spec != MADE):
        check_unknown(run.config.train.data, spec)
        if data is not None:
            check_unknown(parse_place(data)[0], spec)
        try:
            name, split = load_ood_split(asked, spec, root=root)
        except ConfigError as error:
            wrong.append(error)
            continue
        check_samples(spec, describe_samples(split), known=describe_samples(test))
        if name in unknown:
            raise ConfigError(
                f"two OOD sets are named '{name}'; give their folders different names."
            )
        unknown[name] = split
    if wrong:
        raise ConfigError(" ".join(map(str, wrong))) from wrong[0]
    seen = seen_part(asked, test, data=data, root=root)
    if clash := unknown.keys() & making.keys():
        raise ConfigError(f"two OOD sets are named '{clash.pop()}'; give the folder another name.")
    taken = [*unknown, *making, *(f"{kind}-{severity}" for kind, severity in wanted)]
    test = dataclasses.replace(test, name=known_name(test, data=data, taken=taken))
    settings = {
        "is_calibrated": is_calibrated,
        "batch_size": batch_size,
        "advance": advance,
    }
    known = predict_run(run, test, name=test.name, **settings)
    gallery: Gallery = pick_images(known, test)
    outside: dict[str, Predictions] = {}
    for name, split in unknown.items():
        outside[name] = predict_run(run, split, name=name, is_labeled=False, **settings)
        gallery += pick_images(outside[name], split)
    made: dict[str, Predictions] = {}
    for name, make in making.items():
        split = make()
        made[name] = predict_run(run, split, name=name, is_labeled=False, **settings)
        gallery += pick_images(made[name], split)
    corrupted = {}
    for kind, severity in wanted:
        shifted = corrupt_split(test, kind, severity=severity, device=run.device)
        name = f"{kind}-{severity}"
        corrupted[name] = predict_run(run, shifted, name=name, **settings)
    scores = evaluate(
        known,
        ood=outside,
        made=made,
        corrupted=corrupted,
        # The threshold is of calibrated predictions; of others it would say nothing.
        rule=run.rule if is_calibrated else None,
        config=config,
        about=_about(run, test, is_calibrated=is_calibrated, is_own=data is None, seen=seen),
    )
    history = tuple(read_log(run.path))
    return Results(scores=scores, test=known, ood=outside, gallery=gallery, history=history)


def is_without_temperature(scores: Scores) -> bool:
    """Return whether figures of a run are those of predictions without its temperature."""
    return str(scores.about.get(TEMPERATURE, "")).endswith(LEFT_OUT)


def _weights_before(run: Run) -> str:
    """Return where the weights of a run come from that it did not train."""
    training = read_metrics(run.path).get("training", {})
    if "weights_of" in training:
        return f"the weights of {training['weights_of']}, refitted"
    return run.config.train.start or "random weights"


def _name_with_note(test: Split, *, is_own: bool, seen: str | None) -> str:
    """Return the name of a test set, with a note where the run has learned from it."""
    if seen is None:
        return test.name
    # Only where no other data were asked for does the run's own data lack a test split.
    reason = "there is no test split; " if is_own else ""
    return f"{test.name} ({reason}{_SEEN[seen]})"


def _about(
    run: Run, test: Split, *, is_calibrated: bool, is_own: bool, seen: str | None = None
) -> dict[str, Any]:
    """Return what a reader wants to know first of what was run, then everything else.

    Args:
        is_own: whether no other data were asked for than the run's own test set.
        seen: the part of what the run was made from that `test` is, as `seen_part` says it.
    """
    train = run.config.train
    device = "cpu"
    if run.device.type == "cuda":
        device = torch.cuda.get_device_name(run.device)
    return {
        "run": run.path.resolve().name,
        "method": train.method,
        "model": train.model,
        "started from": _weights_before(run),
        "data": train.data,
        EVALUATED_ON: _name_with_note(test, is_own=is_own, seen=seen),
        "epochs": train.epochs,
        "seed": train.seed,
        "parameters": f"{sum(p.numel() for p in run.method.parameters()):,}",
        TEMPERATURE: f"{describe_temperature(run)}{'' if is_calibrated else LEFT_OUT}",
        "threshold": f"{run.decision.score} <= {run.decision.threshold:.6g} counts as known "
        f"(keeps {100 * run.decision.true_positive_rate:.4g}% of the validation set)"
        f"{'' if is_calibrated else ' with the temperature; left out without it'}",
        "software": f"lrformer {__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {device}",
        "config": to_record(run.config),
    }
