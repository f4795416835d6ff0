"""Which state of the package made a figure, for its record."""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path


def source_digest(rooms: Sequence[str] = ("",)) -> str:
    """Return twelve digits that change when a source file does, in these folders of the package or in any."""
    package = _package()
    digest = hashlib.sha256()
    for file in sorted(file for room in rooms for file in (package / room).rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def checkout_commit() -> str | None:
    """Return the commit of the checkout that the package belongs to, if it does; files may have changed since."""
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git("rev-parse", "HEAD")


def _package() -> Path:
    return Path(__file__).parents[1]


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(_package()), *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
