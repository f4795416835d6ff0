"""Several small trainings at once, one process and one thread each, with progress read from their logs."""

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

SECONDS_BETWEEN_LOOKS = 0.3

Show = Callable[[int, int], None]  # the number of a job, and its epochs so far


@dataclass(frozen=True, kw_only=True)
class Job:
    """A function of a module with its arguments, and the log to which it adds a line after every epoch."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    log: Path

    def __call__(self) -> Any:
        """Return what the function returns."""
        return self.function(*self.arguments)


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    jobs: Sequence[Job], *, num_workers: int | None = None, show: Show | None = None
) -> list[Any]:
    """Return the results of `jobs` in their order.

    Args:
        num_workers: processes at a time; None is one for each core, 0 runs everything in this process.
        show: called with every job's epochs while the jobs run.
    """
    show = show or (lambda *_: None)
    if num_workers == 0:
        return [_run_here(number, job, show) for number, job in enumerate(jobs)]
    num_workers = min(num_workers or available_cores(), max(len(jobs), 1))
    # Spawned, because a fork of a process in which torch has threads may hang.
    pool = ProcessPoolExecutor(
        num_workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    try:
        futures = [pool.submit(job) for job in jobs]
        pending: set[Future[Any]] = set(futures)
        while pending:
            done, pending = wait(pending, timeout=SECONDS_BETWEEN_LOOKS)
            for future in done:
                future.result()  # a failure is raised when it happens, not when all is over
            for number, job in enumerate(jobs):
                show(number, count_lines(job.log))
        return [future.result() for future in futures]
    except KeyboardInterrupt:
        # What a job has finished is on disk; the one in hand is not worth waiting for.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def count_lines(path: Path) -> int:
    """Return how many lines a log has; a log that is not there yet has none."""
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _run_here(number: int, job: Job, show: Show) -> Any:
    result = job()
    show(number, count_lines(job.log))
    return result


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Packages that script functions with torch.jit when they are imported; nobody here can help it.
    warnings.filterwarnings("ignore", message=".*torch.jit.*")


def _end_with_parent() -> None:
    """End this worker when the process that started it is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)
