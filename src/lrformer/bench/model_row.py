"""One of our models against timm's, taken in turn: images per second, memory, ratio."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lrformer.bench.attention_row import one_line
from lrformer.bench.journal import Journal
from lrformer.bench.model_contenders import THROUGHPUT_GOAL, ModelContender, make_contenders
from lrformer.bench.place import Place
from lrformer.bench.timing import Times, Work, interleaved_times

Make = Callable[[ModelContender], tuple[nn.Module, Callable[[], object], Callable[[], int]]]


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A model that is ready to be timed; its peak includes weights, optimizer and batch."""

    contender: ModelContender
    work: Work
    num_parameters: int
    peak_bytes: int | None
    num_graph_breaks: int


def prepare_runner(
    place: Place,
    contender: ModelContender,
    make: Make,
    *,
    is_compiled: bool,
    is_graph: bool,
) -> Runner:
    """Return a contender compiled and warm, its memory taken.

    `make` gives the model, one call of the work, and the bytes that are held between calls.
    """
    breaks = _graph_breaks() if is_compiled else Counter()
    breaks.clear()
    model, call, held_bytes = make(contender)
    with contender.context(model):
        for _ in range(2):
            call()
        extra = place.extra_peak_bytes(call)
        work = place.captured(call) if is_graph else call
    return Runner(
        contender=contender,
        work=Work(call=work, context=lambda: contender.context(model)),
        num_parameters=sum(p.numel() for p in model.parameters()),
        peak_bytes=None if extra is None else extra + held_bytes(),
        num_graph_breaks=sum(breaks.values()),
    )


def _graph_breaks() -> Counter[str]:
    """Return torch's own count of the places where compiled code falls back to Python."""
    from torch._dynamo.utils import counters

    return counters["graph_break"]


def measure_models(
    place: Place,
    journal: Journal,
    make: Make,
    *,
    backends: tuple[str, ...],
    batch: int,
    way: str,
    is_graph: bool,
    max_samples: int,
    seconds: float,
    sample_ms: float | None,
    show: Callable[[str], None],
) -> None:
    """Add a row for each of our models at one batch size to `journal`, but for those that it has."""
    rival, ours = make_contenders(backends)
    missing = [c for c in ours if not journal.has(f"{c.name} {batch}")]
    if not missing:
        return
    if way != "none":
        torch.compiler.reset()  # every batch is compiled for its own size

    def prepare(contender: ModelContender) -> Runner:
        return prepare_runner(place, contender, make, is_compiled=way != "none", is_graph=is_graph)

    show(f"0/{len(missing)} {rival.name}, batch {batch}, compiled: {way}")
    baseline = prepare(rival)
    for index, contender in enumerate(missing, 1):
        show(f"{index}/{len(missing)} {contender.name}, batch {batch}, compiled: {way}")
        row = measure_pair(
            place,
            baseline,
            contender,
            prepare,
            batch=batch,
            max_samples=max_samples,
            seconds=seconds,
            sample_ms=sample_ms,
        )
        journal.add({"key": f"{contender.name} {batch}", **row})
        place.release()


def measure_pair(
    place: Place,
    rival: Runner,
    contender: ModelContender,
    prepare: Callable[[ModelContender], Runner],
    *,
    batch: int,
    max_samples: int,
    seconds: float,
    sample_ms: float | None,
) -> dict[str, Any]:
    """Return the row of `contender` against `rival`; an error is a row too."""
    row: dict[str, Any] = {
        "name": contender.name,
        "attention": contender.attention,
        "backend": contender.backend,
        "batch": batch,
        "goal": THROUGHPUT_GOAL,
    }
    try:
        ours = prepare(contender)
        times = interleaved_times(
            place,
            {"ours": ours.work, "rival": rival.work},
            max_samples=max_samples,
            seconds=seconds,
            sample_ms=sample_ms,
        )
    except Exception as error:  # the other models are still worth measuring
        place.release()
        return {**row, "status": "failed", "reason": one_line(error)}
    row |= {
        "status": "measured",
        "ours": _figures(ours, times["ours"], batch),
        "rival": _figures(rival, times["rival"], batch),
        "ratio": times["rival"].median / times["ours"].median,
    }
    if ours.peak_bytes is not None and rival.peak_bytes is not None:
        row["peak_ratio"] = ours.peak_bytes / rival.peak_bytes
    row["is_goal_met"] = row["ratio"] >= THROUGHPUT_GOAL
    return row


def _figures(runner: Runner, times: Times, batch: int) -> dict[str, Any]:
    return {
        "images_per_second": 1000 * batch / times.median,
        **times.to_record(),
        "peak_bytes": runner.peak_bytes,
        "num_parameters": runner.num_parameters,
        "num_graph_breaks": runner.num_graph_breaks,
    }
