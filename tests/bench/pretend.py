"""A CPU that says it is a GPU, so that the paths for GPUs are run where there is none."""

import time
from collections.abc import Callable

from lrformer.bench.place import GIB, Place


class PretendGpu(Place):
    """Takes the branches of a GPU; a captured graph is the call itself, a peak is a made-up number."""

    cache_bytes = 1
    matrix_limit_bytes = GIB
    peak_bytes = 1000

    def __init__(self, name: str = "auto") -> None:
        super().__init__("cpu")
        self.is_cuda = True
        self.captured_calls: list[Callable[[], object]] = []

    def wait(self) -> None:
        pass

    def milliseconds(self, work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - begin)

    def extra_peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        return self.peak_bytes

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        work()
        self.captured_calls.append(work)
        return work

    def release(self) -> None:
        pass
