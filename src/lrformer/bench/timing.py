"""Times of several contenders taken in turn, so that a change of clock or load meets them all."""

import math
import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from lrformer.bench.place import Place

WARM_UP_CALLS = 3
LONG_MS = 100.0
MIN_SAMPLES = 5
MAX_CALLS_IN_A_SAMPLE = 100


@dataclass(frozen=True, kw_only=True)
class Work:
    """Something to time; `context` is entered around a sample, outside of the clock."""

    call: Callable[[], object]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    num_parts: int = 1

    def times(self, count: int) -> Callable[[], None]:
        """Return the work done `count` times in a row."""

        def run() -> None:
            for _ in range(count):
                self.call()

        return run


@dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds of one call: the median of the samples, and each sample."""

    median: float
    samples: tuple[float, ...]
    calls_in_a_sample: int

    def to_record(self) -> dict[str, Any]:
        """Return plain values, rounded to five digits."""
        return {
            "ms": float(f"{self.median:.5g}"),
            "samples": [float(f"{sample:.5g}") for sample in self.samples],
            "calls_in_a_sample": self.calls_in_a_sample,
        }


def interleaved_times(
    place: Place,
    works: Mapping[str, Work],
    *,
    max_samples: int,
    seconds: float,
    sample_ms: float | None = None,
) -> dict[str, Times]:
    """Return the times of every work, sampled in turn; each gets about `seconds` of the device.

    A sample is as many calls as fill `sample_ms` (some milliseconds unless given), from an idle device to an idle device: launches
    that a GPU does not wait for are hidden, as they are in a training, and those it waits for are not.
    """
    if sample_ms is None:
        sample_ms = 5.0 if place.is_cuda else 1.0
    calls, counts, samples = {}, {}, {name: [] for name in works}
    for name, work in works.items():
        with work.context():
            one = _warm_milliseconds(place, work)
        calls[name] = min(max(math.ceil(sample_ms / one), 1), MAX_CALLS_IN_A_SAMPLE)
        fitting = int(1000 * seconds / (calls[name] * one))
        counts[name] = min(max(fitting, MIN_SAMPLES), max_samples)
    for turn in range(max(counts.values(), default=0)):
        for name, work in works.items():
            if turn < counts[name]:
                with work.context():
                    elapsed = place.milliseconds(work.times(calls[name]))
                samples[name].append(elapsed / (calls[name] * work.num_parts))
    return {
        name: Times(
            median=statistics.median(taken),
            samples=tuple(taken),
            calls_in_a_sample=calls[name],
        )
        for name, taken in samples.items()
    }


def _warm_milliseconds(place: Place, work: Work) -> float:
    """Return about how long one call takes once it is warm; one call warms what takes long."""
    first = place.milliseconds(work.call)
    if first > LONG_MS:
        return place.milliseconds(work.call)
    work.times(WARM_UP_CALLS)()
    return max(place.milliseconds(work.times(2)) / 2, 1e-4)
