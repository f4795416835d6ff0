"""A limit on the time of a command: a training in hand is asked to stop as if by Ctrl-C, and keeps its state."""

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class TimeLimit:
    """Counts `seconds` from the start of the block, and interrupts the main thread when they are over.

    A training writes its state before it lets the interruption through, so that it can go on. Where the process
    was told to ignore Ctrl-C, as every job is that a script starts with `&`, it listens inside the block.

    Attributes:
        is_over: whether it was this limit that interrupted, and not a person.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.is_over = False
        self._began = time.monotonic()
        self._timer: threading.Timer | None = None
        self._is_listening = False

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self.seconds is not None:
            self._listen()
        self._start_timer()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_listening:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Interrupt nothing inside the block; the time goes on."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield
        finally:
            self._start_timer()

    @property
    def left(self) -> float:
        """Return the seconds that are left; without a limit there are always more."""
        if self.seconds is None:
            return float("inf")
        return self.seconds - (time.monotonic() - self._began)

    def admits(self, estimate: float | None) -> bool:
        """Return whether a run of `estimate` seconds may be started: it fits, or no whole limit would do for it."""
        if self.seconds is None or estimate is None:
            return self.left > 0
        return estimate <= self.left or (estimate > self.seconds and self.left > 0)

    def _listen(self) -> None:
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        # Only the main thread may set a handler.
        self._is_listening = is_ignored and threading.current_thread() is threading.main_thread()
        if self._is_listening:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _start_timer(self) -> None:
        if self.seconds is None or self.left <= 0:
            return
        self._timer = threading.Timer(min(self.left, threading.TIMEOUT_MAX), self._interrupt)
        self._timer.daemon = True
        self._timer.start()

    def _interrupt(self) -> None:
        self.is_over = True
        _thread.interrupt_main()
