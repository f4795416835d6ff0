"""Where the seeds of one experiment lie: `OUT/seed-N`, as `lrformer train --seeds` makes them."""

import re
from pathlib import Path

from lrformer.training.metrics_file import METRICS_FILE
from lrformer.training.run_config import CONFIG_FILE

NAME = re.compile(r"seed-(\d+)")


def seed_folder(folder: Path, seed: int) -> Path:
    """Return the place of one seed below `folder`."""
    return folder / f"seed-{seed}"


def is_seed_folder(folder: Path) -> bool:
    """Return whether `folder` is named as that of a seed."""
    return NAME.fullmatch(folder.name) is not None


def seed_folders(folder: Path) -> list[Path]:
    """Return the runs below `folder` that are named as seeds, or their evaluations, in the order of the seeds."""
    found = [
        (int(named[1]), path)
        for path in folder.glob("seed-*")
        if (named := NAME.fullmatch(path.name))
        and any((path / name).is_file() for name in (CONFIG_FILE, METRICS_FILE))
    ]
    return [path for _, path in sorted(found)]
