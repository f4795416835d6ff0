"""What a run says about itself epoch by epoch: `log.jsonl` always, TensorBoard on request."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lrformer.core import require_extra
from lrformer.training.atomic_files import RunFileError, replace_file
from lrformer.training.run_folder import LOG_FILE

EVENTS_FOLDER = "tensorboard"
EVENT_FILES = "events.out.tfevents.*"


class Journal:
    """Appends one entry for each epoch; entries from `position` on are dropped, since they come again.

    TensorBoard's events are written anew from the entries that are kept, so that both always say the same.

    Args:
        position: (stage, epoch) at which the run goes on.
    """

    def __init__(
        self, folder: Path, *, position: tuple[int, int], is_tensorboard: bool = False
    ) -> None:
        self.path = folder / LOG_FILE
        self.entries = [
            entry
            for entry in read_log(folder)
            if (entry.get("stage", 0), entry.get("epoch", 0)) < position
        ]
        if self.path.is_file():
            text = "".join(f"{json.dumps(entry)}\n" for entry in self.entries)
            replace_file(self.path, text.encode())
        self._writer: Any = None
        if is_tensorboard:
            self._writer = _start_events(folder / EVENTS_FOLDER, self.entries)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one epoch."""
        self.entries.append(dict(entry))
        try:
            with self.path.open("a") as file:
                file.write(f"{json.dumps(entry)}\n")
        except OSError as error:
            raise RunFileError(
                f"{self.path} could not be written ({error.strerror or error}); the run is kept up to "
                "its last state. Make room, then run the same command again."
            ) from error
        if self._writer is not None:
            _add_events(self._writer, entry)
            self._writer.flush()

    def close(self) -> None:
        """Finish the TensorBoard file, if there is one."""
        if self._writer is not None:
            self._writer.close()


def _start_events(folder: Path, entries: Sequence[Mapping[str, Any]]) -> Any:
    """Return a writer of TensorBoard events into `folder`, which then holds `entries` and nothing older."""
    board = require_extra("torch.utils.tensorboard", extra="tensorboard")
    # A run that was killed may have written epochs that it is about to repeat.
    for path in folder.glob(EVENT_FILES):
        path.unlink()
    writer = board.SummaryWriter(str(folder))
    for entry in entries:
        _add_events(writer, entry)
    writer.flush()
    return writer


def _add_events(writer: Any, entry: Mapping[str, Any]) -> None:
    for name, value in entry.items():
        if isinstance(value, int | float) and name not in ("stage", "epoch"):
            writer.add_scalar(f"stage{entry['stage']}/{name}", value, entry["epoch"])


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of `log.jsonl`; a line that a crash cut short, or that is of no epoch, is left out."""
    path = folder / LOG_FILE
    if not path.is_file():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and all(
            isinstance(number, int) for number in (entry.get("epoch"), entry.get("stage", 0))
        ):
            entries.append(entry)
    return entries
