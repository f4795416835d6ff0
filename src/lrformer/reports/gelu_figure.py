"""The picture of GELU and its derivative."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REACH = 5.0


def gelu(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return x Phi(x) (eq. gelu), with Phi the distribution function of the standard normal."""
    from scipy.special import ndtr

    return x * ndtr(x)


def gelu_derivative(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return Phi(x) + x phi(x) (eq. gelu)."""
    from scipy.special import ndtr

    return ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def draw_gelu(peak_x: float, peak: float, *, save: tuple[Path, ...] = ()) -> "Figure":
    """Return a figure of both curves with the derivative's maximum `peak` at `peak_x` marked.

    Args:
        save: files to write; their suffix says the format.
    """
    from matplotlib.figure import Figure

    x = np.linspace(-REACH, REACH, 1001)
    figure = Figure(figsize=(6.0, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(x, gelu(x), color="#1f5fd6", label="GELU  g(x) = x Φ(x)")
    axes.plot(x, gelu_derivative(x), color="#ff8c1a", label="derivative  g'(x) = Φ(x) + x φ(x)")
    axes.plot([peak_x], [peak], "o", color="black", markersize=5)
    axes.annotate(
        f"largest slope {peak:.6f}\nat x = {peak_x:.6f}",
        (peak_x, peak),
        xytext=(2.05, -0.1),
        arrowprops={"arrowstyle": "->", "color": "black"},
    )
    axes.axhline(peak, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xlim=(-REACH, REACH), ylim=(-0.5, 3.2), xlabel="x")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="upper left")
    for path in save:
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=160, metadata=metadata)
    return figure
