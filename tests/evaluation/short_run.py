"""Runs of any method on any model, trained for a moment, with a decision that treats half of the test split as unknown."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrformer.evaluation import load_test_split
from lrformer.training import Decision, Run, RunConfig
from lrformer.training.backbone import (
    backbone_img_size,
    build_method,
    create_backbone,
    describe_backbone,
)
from lrformer.training.splits import load_splits, validation_batches
from tests.training.small import PLAIN, small

NUM_STEPS = 8


def short_run(path: Path, **settings: Any) -> Run:
    """Return a run that `train` could have made with these settings, in memory."""
    config = small(PLAIN, **settings)
    train, _ = load_splits(config)
    torch.manual_seed(0)
    backbone = create_backbone(config, train)
    record = describe_backbone(backbone, config)
    method = build_method(record, config, train.num_classes)
    size = backbone_img_size(backbone)
    batches = validation_batches(train, image_size=size, device=torch.device("cpu"))
    pairs = [(batch.inputs[:128], batch.labels[:128]) for batch in batches.epoch()]
    method.train()
    method.prepare(pairs)
    for stage in range(method.num_stages):
        method.start_stage(stage)
        optimizer = torch.optim.Adam(method.stage_parameters(), lr=1e-2)
        method.on_epoch_start()
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            method.loss(*pairs[step % len(pairs)]).backward()
            optimizer.step()
            method.after_step(*pairs[step % len(pairs)])
        method.finish_stage()
    method.fit_posterior(pairs)
    run = Run(
        path=path,
        config=RunConfig(
            train=config,
            backbone=record,
            class_names=train.class_names,
            mean=train.mean,
            std=train.std,
            img_size=size,
        ),
        method=method.eval(),
        decision=Decision(
            temperature=0.6, score=method.default_score, threshold=0.0, true_positive_rate=0.95
        ),
    )
    return with_decision(run)


def with_decision(run: Run, **changes: Any) -> Run:
    """Return the run with another decision, whose threshold lies well between two inputs of the test split."""
    changed = dataclasses.replace(run, decision=dataclasses.replace(run.decision, **changes))
    ordered = changed.predict(held_out(run)).uncertainty(changed.decision.score).sort().values
    middle = ordered[len(ordered) // 4 : -len(ordered) // 4]
    gap = int(middle.diff().argmax())
    threshold = float((middle[gap] + middle[gap + 1]) / 2)
    decision = dataclasses.replace(changed.decision, threshold=threshold)
    return dataclasses.replace(changed, decision=decision)


def held_out(run: Run) -> Tensor:
    """Return raw inputs of the test split, at the size that the model takes."""
    raw = torch.as_tensor(load_test_split(run.config).x)
    size = run.config.img_size
    if size is None:
        return raw.float()
    factor = size // raw.shape[1]
    return raw.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
