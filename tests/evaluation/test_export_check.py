"""What counts as the same prediction, and what does not."""

import dataclasses

import numpy as np
import pytest

from lrformer.evaluation.export_check import (
    TOLERANCE,
    DisagreementError,
    compare,
    example_inputs,
)
from lrformer.training import RunConfig

THRESHOLD = 0.5


@pytest.fixture
def expected():
    """Return the outputs of five inputs; the uncertainty of the third is the threshold."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 3)).astype(np.float32) * 20
    uncertainty = np.array([0.1, 0.3, THRESHOLD, 0.7, 2.0], dtype=np.float32)
    return {
        "probs": np.full((5, 3), 1 / 3, dtype=np.float32),
        "uncertainty": uncertainty,
        "in_distribution": uncertainty <= THRESHOLD,
        "logits": logits,
        "variance": np.array([0.02, 0.1, 1.0, 5.0, 9.0], dtype=np.float32),
    }


def moved(outputs, name, change):
    return {**outputs, name: (outputs[name] + change).astype(outputs[name].dtype)}


def test_the_same_outputs_agree(expected):
    agreement = compare(expected, expected, threshold=THRESHOLD)
    assert agreement.is_close
    assert agreement.num_inputs == 5
    assert agreement.num_flags == 0
    assert set(agreement.differences.values()) == {0.0}


@pytest.mark.parametrize("name", TOLERANCE)
def test_each_output_is_compared_on_its_own_scale(expected, name):
    """The last input is the largest of every output but the probabilities."""
    size = {"probs": 1.0, "logits": np.abs(expected["logits"][4]).max(), "uncertainty": 2.0}.get(
        name, 9.0
    )
    change = np.zeros_like(expected[name])
    for factor, is_close in ((0.9, True), (1.2, False)):
        change[4] = factor * TOLERANCE[name] * size
        agreement = compare(moved(expected, name, change), expected, threshold=THRESHOLD)
        assert agreement.is_close == is_close
        assert agreement.differences[name] == pytest.approx(factor * TOLERANCE[name], rel=0.05)


def test_an_uncertainty_far_below_the_threshold_counts_by_the_threshold(expected):
    change = np.array([0.9e-3 * THRESHOLD, 0, 0, 0, 0])
    assert compare(moved(expected, "uncertainty", change), expected, threshold=THRESHOLD).is_close


def test_a_flag_that_differs_counts_unless_the_uncertainty_is_at_the_threshold(expected):
    for row, is_counted in ((1, True), (2, False), (3, True)):
        flags = expected["in_distribution"].copy()
        flags[row] = not flags[row]
        agreement = compare({**expected, "in_distribution": flags}, expected, threshold=THRESHOLD)
        assert agreement.num_flags == is_counted
        assert agreement.is_close != is_counted


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values[:4],
        lambda values: values.astype(np.float64),
        lambda values: np.where(values > 0, np.nan, values).astype(np.float32),
    ],
    ids=["fewer", "wider", "not finite"],
)
def test_outputs_of_another_form_are_refused_by_name(expected, change):
    broken = {**expected, "uncertainty": change(expected["uncertainty"])}
    with pytest.raises(DisagreementError, match="uncertainty are missing, not finite"):
        compare(broken, expected, threshold=THRESHOLD)
    del broken["uncertainty"]
    with pytest.raises(DisagreementError, match="uncertainty are missing"):
        compare(broken, expected, threshold=THRESHOLD)


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (32, 3), (None, 2)])
def test_made_up_inputs_are_seeded_plain_and_hard(size, channels):
    @dataclasses.dataclass
    class Made:
        config: RunConfig

    config = RunConfig(
        train=None, backbone=None, class_names=("a", "b"), img_size=size,
        mean=(0.5,) * channels, std=(0.25,) * channels,
    )  # fmt: skip
    first, again, other = (
        example_inputs(Made(config), num_inputs=12, seed=seed) for seed in (0, 0, 1)
    )
    assert (first == again).all()
    assert (first != other).any()
    wide = first.double()
    spread = (wide - 0.5).norm(dim=1) if size is None else wide.diff(dim=2).abs().mean((1, 2, 3))
    # Six are far from the data, or noise from pixel to pixel; six are not.
    ordered = spread.sort().values
    assert ordered[6:].mean() > 2 * ordered[:6].mean()
