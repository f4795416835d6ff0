"""A new file beside the one that it will replace, readable by whom the user's umask lets read."""

import os
import secrets
from pathlib import Path


def open_beside(path: Path) -> tuple[int, Path]:
    """Return an open descriptor and the name of a new, hidden, empty file in the folder of `path`, of the same suffix."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{path.suffix}")
    return os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), beside
