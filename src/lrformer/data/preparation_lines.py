"""What a person sees while files are prepared: a line now and then, and none where it is soon done."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SECONDS_TO_FIRST_LINE = 5.0
SECONDS_BETWEEN_LINES = 30.0

_is_shown = ContextVar("_is_shown", default=True)
# A split is opened more than once by most commands.
_said: set[str] = set()


@contextmanager
def show_preparation(is_shown: bool) -> Iterator[None]:
    """Show, or do not show, the lines of what is prepared inside the block."""
    token = _is_shown.set(is_shown)
    try:
        yield
    finally:
        _is_shown.reset(token)


def say_once(text: str) -> None:
    """Show a line on standard error, where lines are shown, unless this process has shown it."""
    if _is_shown.get() and text not in _said:
        _said.add(text)
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the display


class PreparationLines:
    """Says on standard error how many files of a split are prepared.

    Args:
        name: what is prepared, for a reader.
        num_files: of the whole split.
    """

    def __init__(self, name: str, num_files: int) -> None:
        self.name = name
        self.num_files = num_files
        self._next_line = time.monotonic() + SECONDS_TO_FIRST_LINE

    def update(self, done: int) -> None:
        """Show a line where one is due, after `done` files."""
        now = time.monotonic()
        if now < self._next_line or not _is_shown.get():
            return
        self._next_line = now + SECONDS_BETWEEN_LINES
        text = f"preparing {self.name}: {done:,} of {self.num_files:,} images"
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the display
