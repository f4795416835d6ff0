"""`bench inference`: forward passes of ViT-S/16 without gradients, ours against timm's."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrformer.bench.attention import check_usable
from lrformer.bench.journal import Journal
from lrformer.bench.model_contenders import (
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
class InferenceBenchConfig:
    """What is measured; None means what suits the device, `depth` makes both models shallower.

    On a GPU weights and images are bfloat16 and the whole pass is one CUDA graph, for both models alike.
    """

    batches: tuple[int, ...] | None = None
    backends: tuple[str, ...] | None = None
    compile_way: str | None = None
    depth: int | None = None
    repeats: int = 50
    seconds: float = 0.5
    device: str = "auto"

    def __post_init__(self) -> None:
        check_model_settings(
            batches=self.batches,
            backends=self.backends,
            compile_way=self.compile_way,
            depth=self.depth,
            repeats=self.repeats,
            seconds=self.seconds,
        )


def bench_inference(
    config: InferenceBenchConfig,
    out: Path | None = None,
    *,
    show: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the record, written to `out` after every row; those that `out` holds are kept."""
    place = Place(config.device)
    check_usable(config.backends, place)
    batches = config.batches or ((1, 64, 512) if place.is_cuda else (1, 4))
    way = config.compile_way or ("blocks" if place.is_cuda else "none")
    settings = {
        "model": OURS,
        "rival": RIVAL,
        "depth": config.depth,
        "compile": way,
        "dtype": "bfloat16" if place.is_cuda else "float32",
        "is_cuda_graph": place.is_cuda,
        "repeats": config.repeats,
        "seconds": config.seconds,
        "goal": THROUGHPUT_GOAL,
    }
    journal = Journal(out, benchmark="inference", where=circumstances(place), settings=settings)
    for batch in batches:

        def make(contender: ModelContender, batch: int = batch):
            return _inference(place, contender, batch, config.depth, way)

        measure_models(
            place,
            journal,
            make,
            backends=config.backends or usual_backends(place),
            batch=batch,
            way=way,
            is_graph=place.is_cuda,
            max_samples=config.repeats,
            seconds=config.seconds,
            sample_ms=20.0 if place.is_cuda else None,
            show=show,
        )
    return journal.record


def _inference(
    place: Place, contender: ModelContender, batch: int, depth: int | None, way: str
) -> tuple[nn.Module, Callable[[], object], Callable[[], int]]:
    """Return a model, its forward pass on one batch that never changes, and what it holds between passes."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if place.is_cuda else torch.float32
    model = contender.build(depth).to(place.device, dtype).eval()
    compile_model(model, way)
    x = random_images(place, batch, dtype)

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    def held_bytes() -> int:
        return sum(p.nbytes for p in model.parameters()) + x.nbytes

    return model, forward, held_bytes
