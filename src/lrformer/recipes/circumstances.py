"""Where figures were measured, without saying on whose machine."""

import platform
from typing import Any

import torch

from lrformer._version import __version__
from lrformer.recipes.jobs import available_cores


def circumstances() -> dict[str, Any]:
    """Return versions, device and number of cores, for a record."""
    return {
        "lrformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu",
        "num_cores": available_cores(),
    }
