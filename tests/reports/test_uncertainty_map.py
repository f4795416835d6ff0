import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from lrformer.core import ConfigError, LRFormerError
from lrformer.data import two_moons
from lrformer.heads import Predictive
from lrformer.methods import create_method
from lrformer.reports import plot_uncertainty
from lrformer.reports.uncertainty_map import uncertainty_on
from lrformer.training import fit_posterior


def _by_distance(x):
    """A model that is less certain the farther a point is from the origin."""
    return Predictive(logits=torch.stack([x[:, 0], -x[:, 0]], 1), variance=x.square().sum(1))


class Plane(nn.Module):
    num_features = 4

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, x):
        return self.layer(x).tanh()


def test_the_map_shows_the_score_at_every_point_of_the_grid():
    figure = plot_uncertainty(_by_distance, extent=(-1, 3, -2, 2), score="variance", resolution=5)
    assert isinstance(figure, Figure)
    drawn = figure.axes[0].images[0]
    x, y = np.meshgrid(np.linspace(-1, 3, 5), np.linspace(-2, 2, 5))
    assert np.asarray(drawn.get_array()) == pytest.approx(x**2 + y**2, abs=1e-5)
    assert tuple(drawn.get_extent()) == (-1, 3, -2, 2)
    assert drawn.origin == "lower"


def test_sure_is_yellow_and_unsure_is_blue_for_uncertainty_and_for_confidence():
    for score, sure in (("variance", 0.0), ("confidence", 1.0)):
        figure = plot_uncertainty(_by_distance, extent=(-1, 1, -1, 1), score=score, resolution=4)
        red, green, blue, _ = figure.axes[0].images[0].get_cmap()(sure)
        assert min(red, green) > 0.8
        assert blue < 0.4
        red, _, blue, _ = figure.axes[0].images[0].get_cmap()(1 - sure)
        assert blue > red


def test_points_are_drawn_in_the_colors_of_their_classes_with_room_around_them():
    data = two_moons(40)
    figure = plot_uncertainty(_by_distance, data.x, data.y, resolution=10, score="entropy")
    axes = figure.axes[0]
    orange, blue = (scatter.get_facecolor()[0] for scatter in axes.collections)
    assert orange[0] > orange[1] > orange[2]
    assert blue[2] > blue[1] > blue[0]
    assert [len(scatter.get_offsets()) for scatter in axes.collections] == [20, 20]
    low, high = axes.get_xlim()
    width = data.x[:, 0].max() - data.x[:, 0].min()
    assert high - low == pytest.approx(2 * width, rel=1e-5)


def test_the_figure_is_saved_as_png_and_svg_and_can_be_drawn_into_axes_of_ones_own(tmp_path):
    files = (tmp_path / "new" / "map.png", tmp_path / "new" / "map.svg")
    own = Figure()
    axes = own.subplots(1, 2)
    figure = plot_uncertainty(
        _by_distance, extent=(0, 1, 0, 1), resolution=4, axes=axes[1], title="mine", save=files
    )
    assert figure is own
    assert axes[1].get_title() == "mine"
    assert not axes[0].images
    assert files[0].read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in files[1].read_text()


def test_a_method_is_asked_for_its_own_score_in_blocks_of_any_size(monkeypatch):
    method = create_method("deterministic", Plane, 3)
    points = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    values, name = uncertainty_on(method, points)
    assert name == method.default_score == "entropy"
    expected = method.predict(torch.from_numpy(points)).uncertainty("entropy")
    assert values == pytest.approx(expected.numpy(), abs=1e-6)
    monkeypatch.setattr("lrformer.reports.uncertainty_map.POINTS_AT_A_TIME", 7)
    assert uncertainty_on(method, points)[0] == pytest.approx(values, abs=1e-6)


def test_a_classifier_with_a_fitted_posterior_shows_its_variance():
    points = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    classifier = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    fitted = fit_posterior(classifier, [torch.from_numpy(points)])
    values, name = uncertainty_on(fitted, points)
    assert name == "variance"
    assert values == pytest.approx(fitted.predict(torch.from_numpy(points)).variance.numpy())


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ConfigError, match="points or extent"):
        plot_uncertainty(_by_distance)
    with pytest.raises(ConfigError, match=r"points has shape \(3, 5\)"):
        plot_uncertainty(_by_distance, np.zeros((3, 5)))
    with pytest.raises(ConfigError, match="extent"):
        plot_uncertainty(_by_distance, extent=(1, 0, 0, 1))
    with pytest.raises(ConfigError, match="resolution"):
        plot_uncertainty(_by_distance, extent=(0, 1, 0, 1), resolution=1)
    with pytest.raises(ConfigError, match="mutual_information"):
        plot_uncertainty(_by_distance, extent=(0, 1, 0, 1), score="mutual_information")
    with pytest.raises(ConfigError, match="a int cannot predict"):
        plot_uncertainty(5, extent=(0, 1, 0, 1))
    with pytest.raises(ConfigError, match=r"labels has shape \(2,\)"):
        plot_uncertainty(_by_distance, np.zeros((3, 2)), np.zeros(2), resolution=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"points": [[1, 2], [3]]}, "points must be an array of numbers"),
        ({"points": "abc"}, "points must be an array of numbers"),
        ({"points": [[0, np.nan]]}, "points has NaN"),
        ({"labels": [0]}, "labels are given without points"),
        ({"extent": (0, 1, 0)}, r"extent \(\(0, 1, 0\)\) must be"),
        ({"extent": (0, np.inf, 0, 1)}, "extent"),
        ({"extent": 5}, r"extent \(5\) must be"),
        ({"resolution": 5.5}, r"resolution \(5.5\) must be a whole number"),
        ({"save": "map.xyz"}, r"save \(map.xyz\) must end in the format"),
        ({"save": "map"}, r"save \(map\) must end in the format"),
        ({"save": ("map.png", 3)}, r"save \(3\) must be a path"),
        ({"axes": 3}, "axes is a int"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_the_model_is_asked(tmp_path, monkeypatch, settings, message):  # fmt: skip
    def never(_):
        raise AssertionError("the model was asked")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        plot_uncertainty(never, **{"extent": (0, 1, 0, 1), **settings})
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_hold_the_picture_is_told_in_words(tmp_path):
    with pytest.raises(ConfigError, match="is a folder; name a file in it"):
        plot_uncertainty(_by_distance, extent=(0, 1, 0, 1), resolution=3, save=tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LRFormerError, match=r"map.png could not be written"):
        plot_uncertainty(
            _by_distance, extent=(0, 1, 0, 1), resolution=3, save=tmp_path / "file" / "map.png"
        )


def test_a_function_that_gives_no_predictive_is_told_what_to_return():
    with pytest.raises(ConfigError, match=r"returned a Tensor; it must return a Predictive"):
        plot_uncertainty(lambda x: x, extent=(0, 1, 0, 1), resolution=3)


def test_a_sampling_method_has_one_value_at_one_point(monkeypatch):
    monkeypatch.setattr("lrformer.reports.uncertainty_map.POINTS_AT_A_TIME", 7)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5))
    body.num_features = 16
    method = create_method("mc_dropout", lambda: body, 2)
    values, _ = uncertainty_on(method, np.ones((20, 2)), seed=3)
    np.testing.assert_allclose(values, values[0], rtol=1e-6)
