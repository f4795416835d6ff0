"""What a person sees while a run trains: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Any, Self

SECONDS_BETWEEN_LINES = 60.0


class Display:
    """Shows loss, accuracy, images per second and the time left.

    Args:
        num_steps: optimizer steps of the whole run, over all stages.
        is_shown: whether anything is shown; one process of many shows.
        seconds_between_lines: epochs that end sooner after the last that was shown are not; on a terminal all are,
            and the last one always.
    """

    def __init__(
        self,
        *,
        num_epochs: int,
        num_stages: int,
        num_steps: int,
        is_shown: bool,
        seconds_between_lines: float = 0.0,
    ) -> None:
        self.num_epochs = num_epochs
        self.num_stages = num_stages
        self.num_steps = num_steps
        self.is_shown = is_shown
        self.seconds_between_lines = seconds_between_lines
        self._bar: Any = None
        self._task: Any = None
        self._last_line = self._last_epoch_line = self._epoch_began = time.monotonic()
        # Times with the steps done by then: where counting began, and the last look.
        self._started: tuple[float, int] | None = None
        self._last_look: tuple[float, int] | None = None
        self._has_ended_epoch = False

    def __enter__(self) -> Self:
        if self.is_shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("", total=self.num_steps, figures="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Show one line."""
        if not self.is_shown:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the display

    def update(
        self,
        *,
        stage: int,
        epoch: int,
        done: int,
        loss: float,
        accuracy: float | None,
        images_per_second: float,
    ) -> None:
        """Show where the run stands after `done` steps."""
        if not self.is_shown:
            return
        title = self._title(stage, epoch)
        figures = f"loss {loss:.4f}{_percent(accuracy)}  {images_per_second:,.0f} images/s"
        if self._bar is not None:
            self._bar.update(self._task, description=title, completed=done, figures=figures)
            return
        now = time.monotonic()
        self._last_look = (now, done)
        if self._started is None:
            self._started = self._last_look
        # Of a short epoch the end has a line soon enough, with its validation.
        since = max(self._last_line, self._epoch_began)
        if now - since >= max(SECONDS_BETWEEN_LINES, self.seconds_between_lines):
            self._last_line = now
            self.say(f"{title}  {figures}  {self._time_left(now, done)}")

    def end_epoch(self, entry: Mapping[str, Any], done: int) -> None:
        """Show the figures of a finished epoch."""
        text = f"{self._title(entry['stage'], entry['epoch'])}  loss {entry['loss']:.4f}"
        text += _percent(entry.get("accuracy"))
        if "val_accuracy" in entry:
            text += f"  val {entry['val_accuracy']:.2%} nll {entry['val_nll']:.4f}"
        text += f"  {entry['images_per_second']:,.0f} images/s"
        now = self._epoch_began = time.monotonic()
        left = self._time_left_at_end(now, done)
        is_last = entry["epoch"] + 1 == self.num_epochs
        is_soon = now - self._last_epoch_line < self.seconds_between_lines
        if self._bar is None and is_soon and not is_last:
            return
        self._last_line = self._last_epoch_line = now
        if self._bar is None:
            text += f"  {left}"
        self.say(text)

    def _title(self, stage: int, epoch: int) -> str:
        member = f"member {stage + 1}/{self.num_stages} " if self.num_stages > 1 else ""
        return f"{member}epoch {epoch + 1}/{self.num_epochs}"

    def _time_left_at_end(self, now: float, done: int) -> str:
        """Return the time left at the end of an epoch; after the first one whole epochs are counted, from its end."""
        if self._has_ended_epoch:
            return self._time_left(now, done)
        # A resumed epoch may have had few steps in this call, to which its whole validation would be laid.
        left = self._time_left(*(self._last_look or (now, done)))
        self._has_ended_epoch = True
        self._started = (now, done)
        return left

    def _time_left(self, now: float, done: int) -> str:
        if self._started is None or done <= self._started[1]:
            return ""
        since, first = self._started
        left = (now - since) / (done - first) * (self.num_steps - done)
        return f"{int(left) // 60}:{int(left) % 60:02d} left"


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"  accuracy {accuracy:.2%}"
