import math

import pytest
import torch

from lrformer.core import ConfigError, NotFittedError
from lrformer.heads import RandomFourierFeatures
from lrformer.heads.random_features import median_distance, orthogonal_gaussian
from tests.tolerance import assert_close


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_papers_features_equal_the_printed_formula() -> None:
    features = RandomFourierFeatures(
        3, 64, length_scale=2.0, feature_scale="literal", generator=generator()
    ).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    expected = math.sqrt(2 / 64) * torch.cos(x @ features.weight.T + features.bias)
    assert_close(features(x), expected, 1e-12)


def test_the_references_features_have_no_root_and_divide_by_the_root_of_the_scale() -> None:
    features = RandomFourierFeatures(
        8, 16, convention="sngp", length_scale=2.0, feature_scale="literal", generator=generator()
    ).double()
    g = generator()
    raw = orthogonal_gaussian(16, 8, generator=g)
    phase = 2 * math.pi * torch.rand(16, generator=g)
    x = torch.randn(5, 8, dtype=torch.float64)
    expected = torch.cos((x / math.sqrt(2)) @ (0.05 * raw.double()).T + phase.double())
    assert_close(features(x), expected, 1e-6)


@pytest.mark.parametrize(
    ("convention", "prior", "length"), [("paper", 1.0, 2.0), ("sngp", 2048.0, math.sqrt(2) / 0.05)]
)
def test_inner_products_approximate_the_rbf_kernel(
    convention: str, prior: float, length: float
) -> None:
    features = RandomFourierFeatures(
        4, 4096, convention=convention, feature_scale="literal", generator=generator()
    )
    x = torch.randn(12, 4, generator=generator()) * length / 2
    phi = features(x)
    kernel = torch.exp(-torch.cdist(x, x).square() / (2 * length**2))
    assert (phi @ phi.T / prior - kernel).abs().max() < 0.06


def test_orthogonal_rows_are_orthogonal_in_blocks_with_gaussian_lengths() -> None:
    rows = orthogonal_gaussian(40, 16, generator=generator()).double()
    for block in (rows[:16], rows[16:32], rows[32:]):
        gram = block @ block.T
        assert (gram - torch.diag(gram.diagonal())).abs().max() < 1e-4
    squared = orthogonal_gaussian(4096, 16, generator=generator()).square().sum(1)
    assert squared.mean() == pytest.approx(16, rel=0.03)
    assert squared.var() == pytest.approx(32, rel=0.15)


@pytest.mark.parametrize("width", [1, 3])
def test_orthogonal_rows_point_in_every_direction_alike(width: int) -> None:
    rows = orthogonal_gaussian(3000 * width, width, generator=generator())
    shares = (rows > 0).double().unflatten(0, (-1, width)).mean(0)
    # Four deviations of a share of 3,000 fair coins, for the sign of every entry of a block.
    assert (shares - 0.5).abs().max() < 4 * 0.5 / math.sqrt(3000)


@pytest.mark.parametrize("feature_scale", ["layer_norm", "calibrate"])
def test_rescaled_inputs_lie_two_apart_whatever_their_width_and_scale(feature_scale: str) -> None:
    for width, scale in ((64, 1.0), (384, 30.0)):
        x = scale * torch.randn(300, width, generator=generator())
        features = RandomFourierFeatures(width, 8, feature_scale=feature_scale)
        if feature_scale == "calibrate":
            features.calibrate(x)
        assert median_distance(features.rescale(x)) == pytest.approx(2.0, rel=0.02)


def test_the_references_he_normal_features_are_what_layer_norm_gives() -> None:
    features = RandomFourierFeatures(
        128, 256, convention="sngp", feature_scale="layer_norm", generator=generator()
    ).double()
    raw = orthogonal_gaussian(256, 128, generator=generator()).double()
    x = 3 * torch.randn(6, 128, dtype=torch.float64) + 1
    normalized = torch.nn.functional.layer_norm(x, (128,))
    he_normal = raw * math.sqrt(2 / 128)
    expected = torch.cos(normalized @ he_normal.T + features.bias)
    assert_close(features(x), expected, 1e-6)


def test_calibration_is_required_saved_and_refused_where_it_means_nothing() -> None:
    features = RandomFourierFeatures(4, 8, feature_scale="calibrate")
    x = torch.randn(20, 4)
    with pytest.raises(NotFittedError, match="calibrate"):
        features(x)
    features.calibrate(x)
    fresh = RandomFourierFeatures(4, 8, feature_scale="calibrate")
    fresh.load_state_dict(features.state_dict())
    assert fresh.is_calibrated
    assert torch.equal(fresh(x), features(x))
    with pytest.raises(ConfigError, match="nothing to calibrate"):
        RandomFourierFeatures(4, 8).calibrate(x)
    with pytest.raises(ConfigError, match="median distance"):
        RandomFourierFeatures(4, 8, feature_scale="calibrate").calibrate(torch.ones(5, 4))


def test_features_are_float32_under_bfloat16_autocast() -> None:
    features = RandomFourierFeatures(16, 32, generator=generator())
    x = torch.randn(4, 16)
    expected = features(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(features(x), expected)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"convention": "rks"}, r"convention \('rks'\)"),
        ({"feature_scale": "batch"}, r"feature_scale \('batch'\)"),
        ({"length_scale": 0.0}, r"length_scale \(0.0\) must be positive"),
        *(
            (
                {"convention": "sngp", "feature_scale": scale, "length_scale": 3.0},
                rf"length_scale \(3.0\) has no meaning .* feature_scale '{scale}'",
            )
            for scale in ("calibrate", "layer_norm")
        ),
    ],
)
def test_wrong_settings_are_named(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RandomFourierFeatures(4, 8, **wrong)
