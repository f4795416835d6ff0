"""Ctrl-C and SIGTERM, held back until a step is finished and its state is written."""

import signal
import threading
from types import FrameType
from typing import Self


class Interruption:
    """Notes the first SIGINT or SIGTERM inside the block; a second one acts at once.

    Attributes:
        is_wanted: whether the user has asked to stop.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        # Only the main thread may take signals; elsewhere they go where they always went.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
