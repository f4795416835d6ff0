"""`bench training`: forward, backward and optimizer step of ViT-S/16, ours against timm's."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lrformer.bench.attention import check_usable
from lrformer.bench.journal import Journal
from lrformer.bench.model_contenders import (
    NUM_CLASSES,
    OURS,
    RIVAL,
    THROUGHPUT_GOAL,
    ModelContender,
    check_model_settings,
    compile_model,
    random_images,
    usual_backends,
)
from lrformer.bench.model_row import measure_models
from lrformer.bench.place import Place, circumstances


@dataclass(frozen=True, kw_only=True)
class TrainingBenchConfig:
    """What is measured; None means what suits the device, `depth` makes both models shallower.

    `compile_way` is `model`, `blocks` or `none`. On a GPU the forward pass is bfloat16 autocast.
    """

    batch: int | None = None
    backends: tuple[str, ...] | None = None
    compile_way: str | None = None
    depth: int | None = None
    repeats: int = 30
    seconds: float = 2.0
    device: str = "auto"

    def __post_init__(self) -> None:
        check_model_settings(
            batches=None if self.batch is None else (self.batch,),
            backends=self.backends,
            compile_way=self.compile_way,
            depth=self.depth,
            repeats=self.repeats,
            seconds=self.seconds,
        )


def bench_training(
    config: TrainingBenchConfig,
    out: Path | None = None,
    *,
    show: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the record, written to `out` after every model; those that `out` holds are kept."""
    place = Place(config.device)
    check_usable(config.backends, place)
    batch = config.batch or (512 if place.is_cuda else 2)
    way = config.compile_way or ("model" if place.is_cuda else "none")
    settings = {
        "model": OURS,
        "rival": RIVAL,
        "depth": config.depth,
        "compile": way,
        "dtype": "bfloat16 autocast" if place.is_cuda else "float32",
        "optimizer": "AdamW",
        "repeats": config.repeats,
        "seconds": config.seconds,
        "goal": THROUGHPUT_GOAL,
    }
    journal = Journal(out, benchmark="training", where=circumstances(place), settings=settings)

    def make(contender: ModelContender):
        return _training(place, contender, batch, config.depth, way)

    measure_models(
        place,
        journal,
        make,
        backends=config.backends or usual_backends(place),
        batch=batch,
        way=way,
        is_graph=False,
        max_samples=config.repeats,
        seconds=config.seconds,
        sample_ms=250.0 if place.is_cuda else None,
        show=show,
    )
    return journal.record


def _training(
    place: Place, contender: ModelContender, batch: int, depth: int | None, way: str
) -> tuple[nn.Module, Callable[[], object], Callable[[], int]]:
    """Return a model, its step on one batch that never changes, and what it holds between steps."""
    torch.manual_seed(0)
    model = contender.build(depth).to(place.device).train()
    compile_model(model, way)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, weight_decay=0.05, fused=place.is_cuda
    )
    x = random_images(place, batch, torch.float32)
    y = torch.arange(batch, device=place.device) % NUM_CLASSES

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(place.device.type, torch.bfloat16, enabled=place.is_cuda):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    def held_bytes() -> int:
        states = (s for state in optimizer.state.values() for s in state.values())
        grads = (p.grad for p in model.parameters() if p.grad is not None)
        kept = [*model.parameters(), *grads, *states, x]
        return sum(tensor.nbytes for tensor in kept if isinstance(tensor, torch.Tensor))

    return model, step, held_bytes
