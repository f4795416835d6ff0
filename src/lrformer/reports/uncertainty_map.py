"""A heat map of uncertainty over the plane: where a model is sure, and where it knows that it does not know."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lrformer.core import ConfigError, make_generator
from lrformer.heads import Predictive
from lrformer.methods import Method
from lrformer.training import PosteriorClassifier, Run, load_run
from lrformer.training.atomic_files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The paper's: yellow is sure, blue is unsure; the classes are orange and blue points.
COLOR_MAP = "cividis_r"
POINT_COLORS = ("#ff8c1a", "#1f5fd6", "#2ca25f", "#c51b8a", "#7a5195", "#d62728")
CONFIDENCE = "confidence"
POINTS_AT_A_TIME = 4096

Extent = tuple[float, float, float, float]
Predict = Callable[[Float[Tensor, "b 2"]], Predictive]


def plot_uncertainty(
    model: Run | Method | PosteriorClassifier | Predict | str | Path,
    points: Shaped[np.ndarray, "n 2"] | Shaped[Tensor, "n 2"] | None = None,
    labels: Shaped[np.ndarray, " n"] | Shaped[Tensor, " n"] | None = None,
    *,
    score: str | None = None,
    extent: Extent | None = None,
    resolution: int = 200,
    title: str | None = None,
    axes: "Axes | None" = None,
    save: str | Path | tuple[str | Path, ...] = (),
    seed: int = 0,
) -> "Figure":
    """Return a matplotlib figure of the uncertainty of any model on a grid over the plane.

    Args:
        model: a run, the folder of one, a method, a classifier that `fit_posterior` gave a variance, or any function from
            points to a `Predictive`. A run normalizes the points itself; the others get them as they are.
        points: of the data, drawn on top; without `extent` they say how much of the plane to show.
        labels: of the points, for their colors.
        score: one of the scores that the model gives, or "confidence" for the largest probability; by default the
            method's own, and the variance of what `fit_posterior` made.
        extent: (x low, x high, y low, y high).
        resolution: grid points along each side.
        axes: where to draw; a new figure by default.
        save: one or more files to write; their suffix says the format: .png, .svg, .pdf.
        seed: of the draws of a sampling method.
    """
    data = None if points is None else _points(points)
    groups = _groups(data, labels)
    low_x, high_x, low_y, high_y = _extent(extent, data)
    if not isinstance(resolution, int) or resolution < 2:
        raise ConfigError(f"resolution ({resolution!r}) must be a whole number, at least 2.")
    paths = _files(save)
    _check_axes(axes)
    horizontal = np.linspace(low_x, high_x, resolution)
    vertical = np.linspace(low_y, high_y, resolution)
    grid = np.stack(np.meshgrid(horizontal, vertical), axis=-1).reshape(-1, 2)
    values, name = uncertainty_on(model, grid, score=score, seed=seed)

    from matplotlib.figure import Figure

    if axes is None:
        figure = Figure(figsize=(5.2, 4.4), layout="constrained")
        axes = figure.subplots()
    else:
        figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    is_sure = name == CONFIDENCE
    image = axes.imshow(
        values.reshape(resolution, resolution),
        extent=(low_x, high_x, low_y, high_y),
        origin="lower",
        aspect="auto",
        cmap=COLOR_MAP.removesuffix("_r") if is_sure else COLOR_MAP,
        interpolation="bilinear",
    )
    for number, rows in enumerate(groups):
        color = POINT_COLORS[number % len(POINT_COLORS)]
        axes.scatter(*rows.T, s=9, color=color, edgecolors="white", linewidths=0.25)
    axes.set(xlim=(low_x, high_x), ylim=(low_y, high_y), title=title or "")
    end = "yellow: sure, blue: unsure"
    figure.colorbar(image, ax=axes, label=f"{name} ({end})")
    for path in paths:
        drawn = io.BytesIO()
        figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=200)
        replace_file(path, drawn.getvalue())
    return figure


@torch.no_grad()
def uncertainty_on(
    model: Run | Method | PosteriorClassifier | Predict | str | Path,
    points: Shaped[np.ndarray, "n 2"],
    *,
    score: str | None = None,
    seed: int = 0,
) -> tuple[Float[np.ndarray, " n"], str]:
    """Return one score of a model at every point, and the name of that score."""
    if isinstance(model, str | Path):
        model = load_run(model)
    name, predict = _predictor(model, score, seed)
    parts = []
    for block in torch.from_numpy(np.asarray(points, dtype=np.float32)).split(POINTS_AT_A_TIME):
        predictive = predict(block)
        if not isinstance(predictive, Predictive):
            raise ConfigError(
                f"the model returned a {type(predictive).__name__}; it must return a Predictive, such as "
                "lambda x: Predictive(logits=model(x))."
            )
        value = predictive.probs.amax(-1) if name == CONFIDENCE else predictive.uncertainty(name)
        parts.append(value.detach().double().cpu().numpy())
    return np.concatenate(parts), name


def _predictor(
    model: Any, score: str | None, seed: int
) -> tuple[str, Callable[[Tensor], Predictive]]:
    """Return the name of the score, and how `model` predicts plain points."""
    if isinstance(model, Run):
        if model.config.img_size is not None or model.config.channels != 2:
            raise ConfigError(
                f"{model.path} was not trained on points in the plane; a heat map needs two coordinates."
            )
        # The same draws for every block of points: a map of one function, without seams.
        return score or model.decision.score, lambda x: model.predict(
            x, generator=make_generator(seed)
        )
    if isinstance(model, PosteriorClassifier):
        device = next(model.parameters()).device
        return score or "variance", lambda x: model.predict(x.to(device), make_generator(seed))
    if isinstance(model, Method):
        device = next(model.parameters()).device
        return score or model.default_score, lambda x: model.predict(
            x.to(device), make_generator(seed)
        )
    if callable(model):
        own: Any = model
        return score or "entropy", own
    raise ConfigError(
        f"a {type(model).__name__} cannot predict; give a run, its folder, a method, or a function from points to a "
        "Predictive."
    )


def _points(points: Any) -> Float[np.ndarray, "n 2"]:
    data = _array("points", points, dtype=np.float64)
    if data.ndim != 2 or data.shape[1] != 2 or len(data) == 0:
        raise ConfigError(f"points has shape {data.shape}; it must be (points, 2), not empty.")
    if not np.isfinite(data).all():
        raise ConfigError("points has NaN or infinite entries; leave those points out.")
    return data


def _array(name: str, values: Any, *, dtype: Any = None) -> np.ndarray:
    try:
        return np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be an array of numbers ({error}).") from error


def _groups(data: np.ndarray | None, labels: Any) -> list[Float[np.ndarray, "n 2"]]:
    """Return the points of each label, in the order of the labels."""
    if data is None:
        if labels is not None:
            raise ConfigError(
                "labels are given without points; give the points that they belong to."
            )
        return []
    if labels is None:
        return [data]
    truth = _array("labels", labels)
    if truth.shape != (len(data),):
        raise ConfigError(
            f"labels has shape {truth.shape}; it must be ({len(data)},), one for each point."
        )
    return [data[truth == label] for label in np.unique(truth)]


def _extent(extent: Extent | None, data: np.ndarray | None) -> Extent:
    """Return the part of the plane to show: what was asked for, or the data with as much room again around them."""
    if extent is not None:
        edges = _array("extent", extent, dtype=np.float64)
        is_whole = edges.shape == (4,) and np.isfinite(edges).all()
        if not is_whole or edges[0] >= edges[1] or edges[2] >= edges[3]:
            raise ConfigError(f"extent ({extent}) must be (x low, x high, y low, y high).")
        low_x, high_x, low_y, high_y = edges.tolist()
        return low_x, high_x, low_y, high_y
    if data is None:
        raise ConfigError(
            "give points or extent: one of them says which part of the plane to show."
        )
    low, high = data.min(axis=0), data.max(axis=0)
    room = np.where(high > low, (high - low) / 2, 1.0)
    (low_x, low_y), (high_x, high_y) = low - room, high + room
    return float(low_x), float(high_x), float(low_y), float(high_y)


def _files(save: Any) -> list[Path]:
    """Return the files to write, or raise if one cannot be a picture: before anything is predicted."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    paths = []
    for path in save if isinstance(save, list | tuple) else (save,):
        if not isinstance(path, str | Path):
            raise ConfigError(f"save ({path!r}) must be a path, or several, such as 'map.png'.")
        path = Path(path)
        if path.is_dir():
            raise ConfigError(f"save ({path}) is a folder; name a file in it, such as map.png.")
        if path.suffix[1:].lower() not in known:
            raise ConfigError(
                f"save ({path}) must end in the format of the picture: .png, .svg, .pdf or another "
                f"of {', '.join(known)}."
            )
        paths.append(path)
    return paths


def _check_axes(axes: Any) -> None:
    from matplotlib.axes import Axes

    if axes is not None and not isinstance(axes, Axes):
        raise ConfigError(
            f"axes is a {type(axes).__name__}; it must be matplotlib's Axes, or None."
        )
