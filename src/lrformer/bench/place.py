"""The device that a benchmark runs on: waiting, clocks, memory, graphs, and its name for the record."""

import gc
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lrformer._version import __version__
from lrformer.attention.backends import BACKENDS, resolve_backend
from lrformer.attention.backends.automatic import HAS_TRITON
from lrformer.core import ConfigError
from lrformer.core.provenance import checkout_commit, source_digest

GIB = 2**30
# What the figures depend on: a record of other sources does not go on.
ROOMS = ("attention", "bench", "core", "lipschitz", "models")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A captured work. The work itself is kept: its inputs were not made by the graph, which reads them."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], object]

    def __call__(self) -> None:
        """Replay the graph."""
        self.graph.replay()


class Place:
    """A CPU or a CUDA device behind the few things that a benchmark asks of it."""

    def __init__(self, name: str = "auto") -> None:
        if name not in DEVICES:
            raise ConfigError(f"device ({name!r}) must be one of {', '.join(DEVICES)}.")
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device ('cuda') is not there; leave it out to measure on the CPU.")
        self.device = torch.device(name)
        self.is_cuda = name == "cuda"

    def wait(self) -> None:
        """Return when everything that was started is done."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def milliseconds(self, work: Callable[[], object]) -> float:
        """Return how long `work` takes, from an idle device to an idle device."""
        self.wait()
        if not self.is_cuda:
            begin = time.perf_counter()
            work()
            return 1000 * (time.perf_counter() - begin)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def extra_peak_bytes(self, work: Callable[[], object]) -> int | None:
        """Return the most memory that `work` holds beyond what is held already; unknown on a CPU."""
        if not self.is_cuda:
            return None
        self.wait()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        self.wait()
        return torch.cuda.max_memory_allocated() - before

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Return `work`, which ran before, as the replay of a CUDA graph: no launches from Python."""
        assert self.is_cuda
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        return Replay(graph=graph, work=work)

    def release(self) -> None:
        """Give back what is no longer used."""
        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()

    @property
    def cache_bytes(self) -> int:
        """How much the last cache holds, or about that."""
        if self.is_cuda:
            return torch.cuda.get_device_properties(self.device).L2_cache_size
        return 32 * 2**20

    @property
    def backends(self) -> tuple[str, ...]:
        """Our backends that can run here."""
        return tuple(name for name in BACKENDS[1:] if self.is_cuda or name != "triton")

    def why_unusable(self, backend: str) -> str | None:
        """Return what keeps one of our backends from running here at all, or None."""
        if backend != "triton":
            return None
        if not HAS_TRITON:
            return "needs the package triton, which comes with torch for CUDA"
        triton = resolve_backend(backend)
        if not self.is_cuda and not triton.IS_INTERPRETED:
            return f"runs on a CUDA device, and this is {self.device}"
        return triton.UNUSABLE

    @property
    def matrix_limit_bytes(self) -> int:
        """The most that a contender with whole matrices may be expected to take."""
        if not self.is_cuda:
            return 2 * GIB
        return min(40 * GIB, torch.cuda.get_device_properties(self.device).total_memory // 3)


def circumstances(place: Place) -> dict[str, Any]:
    """Return versions, sources and device, for a record."""
    found: dict[str, Any] = {
        "lrformer": __version__,
        "commit": checkout_commit(),
        "sources": source_digest(ROOMS),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if place.is_cuda else "cpu",
    }
    if place.is_cuda:
        return {**found, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {**found, "num_cores": os.cpu_count(), "num_threads": torch.get_num_threads()}
