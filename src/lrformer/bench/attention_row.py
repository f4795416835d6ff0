"""One shape measured: every contender in turn, its memory, its errors, and its share of the ceilings."""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lrformer.bench.attention_contenders import Contender, Inputs, draw_inputs
from lrformer.bench.attention_errors import exact_results, relative_errors
from lrformer.bench.place import GIB, Place
from lrformer.bench.roofline import Ceilings, floor_of
from lrformer.bench.shapes import AttentionShape
from lrformer.bench.timing import Work, interleaved_times

SPEED_GOAL = 0.95
MEMORY_GOAL = 1.05
_MAX_INPUT_SETS = 8
_MAX_GRAPH_BYTES = 8 * GIB
_COMPILED_MATRIX_WIDTH = 64


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """How much of a row is measured, and for how long."""

    dtype: torch.dtype
    max_samples: int
    seconds: float
    has_forward: bool = True
    has_errors: bool = True
    seed: int = 0


def measure_row(
    place: Place,
    shape: AttentionShape,
    contenders: list[Contender],
    ceilings: Ceilings,
    settings: RowSettings,
) -> dict[str, Any]:
    """Return the row of `shape`: one entry a contender, with its error where it raised one."""
    if any(contender.is_compiled for contender in contenders):
        torch.compiler.reset()  # each shape is compiled for itself; torch limits how many it keeps
    sets = _draw_sets(place, shape, settings)
    entries = {contender.name: _entry(contender) for contender in contenders}
    ready = []
    for contender in contenders:
        entry = entries[contender.name]
        reason = _reason_to_skip(place, shape, contender)
        if reason is not None:
            entry.update(status="skipped", reason=reason)
        elif _prepare(place, contender, sets[0], entry):
            ready.append(contender)
    if settings.has_errors:
        _add_errors(ready, sets[0], entries)
    for name, works in _works(place, ready, sets, entries, has_forward=settings.has_forward):
        times = interleaved_times(
            place, works, max_samples=settings.max_samples, seconds=settings.seconds
        )
        for contender, found in times.items():
            entries[contender][name] = found.to_record()
        del works
        place.release()
    row = {
        "shape": asdict(shape),
        "num_input_sets": len(sets),
        "baseline": {},
        "contenders": list(entries.values()),
    }
    _add_ratios(row)
    _add_roofline(row, shape, ceilings, settings.dtype)
    return row


def _draw_sets(place: Place, shape: AttentionShape, settings: RowSettings) -> list[Inputs]:
    """Return as many draws of inputs as it takes for none to stay in the cache."""
    one = 5 * shape.num_elements * settings.dtype.itemsize
    count = min(max(-(-2 * place.cache_bytes // one), 1), _MAX_INPUT_SETS)
    return [
        draw_inputs(shape, settings.dtype, place, settings.seed + index) for index in range(count)
    ]


def _entry(contender: Contender) -> dict[str, Any]:
    return {
        "name": contender.name,
        "attention": contender.attention,
        "backend": contender.backend,
        "is_compiled": contender.is_compiled,
        "status": "measured",
    }


def _reason_to_skip(place: Place, shape: AttentionShape, contender: Contender) -> str | None:
    if contender.backend != "reference":
        return None
    if shape.matrix_bytes > place.matrix_limit_bytes:
        return (
            f"whole matrices would take about {shape.matrix_bytes / GIB:.0f} GiB, "
            f"the limit here is {place.matrix_limit_bytes / GIB:.0f} GiB"
        )
    if contender.is_compiled and shape.head_dim != _COMPILED_MATRIX_WIDTH:
        return f"compiled at head width {_COMPILED_MATRIX_WIDTH} only, to save time"
    return None


def _prepare(place: Place, contender: Contender, inputs: Inputs, entry: dict[str, Any]) -> bool:
    """Run a contender for the first time and take its memory; return whether it runs at all."""
    try:
        with warnings.catch_warnings(), contender.context():
            warnings.simplefilter("ignore")  # torch says in warnings why a fused backend cannot run
            contender.forward_backward(inputs)
            extra = place.extra_peak_bytes(lambda: contender.forward_backward(inputs))
    except Exception as error:  # whatever it is, the others are still worth measuring
        entry.update(status="failed", reason=one_line(error))
        place.release()
        return False
    if extra is not None:
        own = (*inputs.leaves(contender.attention).values(), inputs.grad)
        entry["peak_bytes"] = extra + sum(tensor.nbytes for tensor in own)
    return True


def one_line(error: BaseException) -> str:
    """Return the kind of an error and the first of what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _add_errors(ready: list[Contender], inputs: Inputs, entries: dict[str, Any]) -> None:
    for attention, group in itertools.groupby(
        sorted(ready, key=lambda c: c.attention), key=lambda c: c.attention
    ):
        exact = exact_results(attention, inputs)
        for contender in group:
            with contender.context():
                entries[contender.name]["errors"] = relative_errors(contender, inputs, exact)


def _works(
    place: Place,
    ready: list[Contender],
    sets: list[Inputs],
    entries: dict[str, Any],
    *,
    has_forward: bool,
):
    """Yield what is timed: forward and backward, forward alone, and both as a CUDA graph."""
    yield "forward_backward", {c.name: _rotating(c, c.forward_backward, sets) for c in ready}
    if has_forward:
        yield "forward", {c.name: _rotating(c, c.forward, sets) for c in ready}
    if not place.is_cuda:
        return
    graphs = {}
    for contender in ready:
        if entries[contender.name].get("peak_bytes", 0) > _MAX_GRAPH_BYTES:
            continue

        def whole_round(contender: Contender = contender) -> None:
            for inputs in sets:
                contender.forward_backward(inputs)

        try:
            with contender.context():
                replay = place.captured(whole_round)
        except Exception as error:  # a contender that cannot be captured still has its other times
            entries[contender.name]["graph_reason"] = one_line(error)
            continue
        graphs[contender.name] = Work(call=replay, num_parts=len(sets))
    yield "graph", graphs


def _rotating(
    contender: Contender, function: Callable[[Inputs], object], sets: list[Inputs]
) -> Work:
    turn = itertools.cycle(sets)
    return Work(call=lambda: function(next(turn)), context=contender.context)


def _add_ratios(row: dict[str, Any]) -> None:
    """Add the fastest of torch's fused attentions as the baseline, and every ratio to it."""
    rivals = [entry for entry in row["contenders"] if entry["attention"] == "dot_product"]
    for kind in ("forward_backward", "forward", "graph"):
        timed = [entry for entry in rivals if kind in entry]
        if not timed:
            continue
        best = min(timed, key=lambda entry: entry[kind]["ms"])
        row["baseline"][kind] = best["name"]
        for entry in row["contenders"]:
            if kind in entry:
                entry[kind]["ratio"] = best[kind]["ms"] / entry[kind]["ms"]
            if kind == "forward_backward" and "peak_bytes" in entry:
                entry["peak_ratio"] = entry["peak_bytes"] / best["peak_bytes"]


def _add_roofline(
    row: dict[str, Any], shape: AttentionShape, ceilings: Ceilings, dtype: torch.dtype
) -> None:
    """Add the least bytes and operations of forward and backward, and what share of the ceilings that is."""
    for entry in row["contenders"]:
        timed = entry.get("graph") or entry.get("forward_backward")
        if timed is None:
            continue
        floor = floor_of(entry["attention"], shape, dtype.itemsize, backward=True)
        entry["roofline"] = {**asdict(floor), **ceilings.fractions(floor, timed["ms"])}
