"""Figure 3 of the paper: GELU and its derivative, with the true maximum of the derivative."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lrformer.core import to_record
from lrformer.lipschitz.layers import activation_constant
from lrformer.recipes.circumstances import circumstances
from lrformer.reports.gelu_figure import draw_gelu, gelu_derivative
from lrformer.training.atomic_files import write_json

RECORD_FILE = "figure3.json"
PICTURE_NAME = "figure3"


@dataclass(frozen=True, kw_only=True)
class GeluMaximum:
    """Where the derivative of GELU is largest, and what the package takes for its Lipschitz constant."""

    x: float
    derivative: float
    constant: float


def reproduce_figure3(out: Path) -> GeluMaximum:
    """Return the maximum of GELU's derivative, found numerically, after drawing it to `out`."""
    found = find_maximum()
    save = tuple(out / f"{PICTURE_NAME}.{kind}" for kind in ("png", "svg"))
    draw_gelu(found.x, found.derivative, save=save)
    write_json(
        out / RECORD_FILE,
        {"kind": "figure3", **circumstances(), "maximum": to_record(found)},
    )
    return found


def find_maximum() -> GeluMaximum:
    """Return the maximum of g'(x) = Phi(x) + x phi(x): the root of g'' by bisection on [1, 2]."""
    low, high = 1.0, 2.0
    while high - low > 2 * np.spacing(low):
        middle = (low + high) / 2
        # g''(x) = (2 - x^2) phi(x); only its sign is needed, and phi is positive.
        low, high = (middle, high) if 2 - middle**2 > 0 else (low, middle)
    x = (low + high) / 2
    derivative = float(gelu_derivative(np.array([x]))[0])
    return GeluMaximum(x=x, derivative=derivative, constant=activation_constant("gelu"))
