"""Two moons as an experiment: the points, the grid around them, and figures for what a heat map shows."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.data import stratified_rows, two_moons
from lrformer.metrics import auroc

NOISE = 0.05  # the moons do not touch: the Bayes error is 0
NUM_POINTS = 1000
EXTENT = (-3.0, 4.0, -3.0, 3.5)  # x low, x high, y low, y high
GRID_SHAPE = (66, 71)  # rows, columns: a step of 0.1 both ways
FAR = 0.5
# Training draws have the seed of the run; test draws start where no run's seed will be.
_TEST_SEED = 1_000_000
_VAL_FRACTION = 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class Moons:
    """Training points, and points on which something is measured, in the plane as it is drawn."""

    train_x: Float[np.ndarray, "n 2"]
    train_y: Int[np.ndarray, " n"]
    test_x: Float[np.ndarray, "m 2"]
    test_y: Int[np.ndarray, " m"]

    def standardize(self, points: Float[np.ndarray, "k 2"]) -> Float[Tensor, "k 2"]:
        """Return what a model is fed: centered, and divided by one scale for both coordinates.

        One scale, because two would stretch the plane: what is far in it should be far for the model.
        """
        mean = self.train_x.mean(axis=0)
        scale = np.sqrt(np.square(self.train_x - mean).mean())
        return torch.from_numpy(((points - mean) / scale).astype(np.float32))

    def distance(self, points: Float[np.ndarray, "k 2"]) -> Float[np.ndarray, " k"]:
        """Return how far each point is from the nearest training point."""
        from scipy.spatial import KDTree

        return np.asarray(KDTree(self.train_x).query(points)[0])


@dataclass(frozen=True, kw_only=True)
class DistanceAwareness:
    """How well an uncertainty knows the distance from the training data.

    Attributes:
        auroc: of uncertainty, between points of the data and points far from all training points.
        rank_correlation: Spearman's, between uncertainty and the distance to the nearest training point.
    """

    auroc: float
    rank_correlation: float


def draw_moons(seed: int, *, num_points: int = NUM_POINTS) -> Moons:
    """Return as many training as test points, both drawn for this seed."""
    train = two_moons(num_points, noise=NOISE, seed=seed)
    test = two_moons(num_points, noise=NOISE, seed=_TEST_SEED + seed)
    return Moons(
        train_x=np.asarray(train.x), train_y=train.y, test_x=np.asarray(test.x), test_y=test.y
    )


def hold_out(moons: Moons, *, seed: int) -> Moons:
    """Return the training points alone, a fifth of them held out to tune on; the test points are gone."""
    kept, cut = stratified_rows(moons.train_y, fraction=_VAL_FRACTION, seed=seed)
    return Moons(
        train_x=moons.train_x[kept],
        train_y=moons.train_y[kept],
        test_x=moons.train_x[cut],
        test_y=moons.train_y[cut],
    )


def synthetic_outliers(moons: Moons, *, seed: int) -> Float[np.ndarray, "k 2"]:
    """Return training points pushed off in random directions, those that left the data.

    They are what a method may be tuned on: made from the training set, without the evaluation grid. A
    point is pushed by up to twice the largest side of the data, and has left if no training point
    is as near to it as the loneliest training point is to its own neighbor.
    """
    from scipy.spatial import KDTree

    generator = np.random.default_rng(seed)
    num_points = len(moons.train_x)
    angle = generator.uniform(0, 2 * np.pi, num_points)
    longest = 2 * np.ptp(moons.train_x, axis=0).max()
    length = generator.uniform(0, longest, num_points)
    step = length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    pushed = (moons.train_x + step).astype(np.float32)
    loneliest = KDTree(moons.train_x).query(moons.train_x, k=2)[0][:, 1].max()
    return pushed[moons.distance(pushed) > loneliest]


def grid_points(shape: tuple[int, int] = GRID_SHAPE) -> Float[np.ndarray, "k 2"]:
    """Return the grid over `EXTENT`, row by row from the lowest."""
    low_x, high_x, low_y, high_y = EXTENT
    rows, columns = shape
    x, y = np.meshgrid(np.linspace(low_x, high_x, columns), np.linspace(low_y, high_y, rows))
    return np.stack([x, y], axis=-1).reshape(-1, 2).astype(np.float32)


def distance_awareness(
    known: Float[np.ndarray, " m"],
    elsewhere: Float[np.ndarray, " k"],
    distance: Float[np.ndarray, " k"],
    *,
    far: float = FAR,
) -> DistanceAwareness:
    """Return both figures from the uncertainty of `known` points and of points at a `distance` from the data.

    Args:
        far: points farther than this from all training points are those that the AUROC is to tell from
            the known ones; the rank correlation is over all points.
    """
    from scipy.stats import rankdata

    is_far = distance > far
    if not is_far.any():
        raise ConfigError(f"no point is farther than far ({far}) from the data; choose less.")
    ranks, ranks_of_distance = rankdata(elsewhere), rankdata(distance)
    # A constant uncertainty orders nothing: 0, not the 0/0 of the formula.
    is_constant = np.ptp(ranks) == 0 or np.ptp(ranks_of_distance) == 0
    correlation = 0.0 if is_constant else float(np.corrcoef(ranks, ranks_of_distance)[0, 1])
    return DistanceAwareness(auroc=auroc(known, elsewhere[is_far]), rank_correlation=correlation)
