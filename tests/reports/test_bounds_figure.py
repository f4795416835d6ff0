import math

import pytest
import torch
from torch import nn

from lrformer.core import ConfigError
from lrformer.evaluation.bounds import bounds
from lrformer.models import create_model
from lrformer.reports.bounds_figure import plot_bounds


def test_the_picture_draws_bound_ball_and_measurement_at_every_block_and_at_the_logits(tmp_path):
    model = create_model("lrformer_digits", depth=2)
    report = bounds(model, torch.randn(2, 1, 8, 8), radius=1e-3, num_steps=2)
    figure = plot_bounds(report, tmp_path / "bounds.svg")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    sound = lines["sound, for all inputs"].get_ydata()
    assert list(sound) == pytest.approx(
        [p.log10_sound for p in report.depth] + [report.chain.log10]
    )
    near = list(lines["sound, within 0.001 of the inputs"].get_ydata())
    assert near[-1] == pytest.approx(math.log10(max(report.local.constants)))
    measured = list(lines["measured (lower bound)"].get_ydata())
    assert measured[-1] == pytest.approx(math.log10(max(report.measured)))
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == ["embedding", "block 0", "block 1", "logits"]
    assert (tmp_path / "bounds.svg").read_text().startswith("<?xml")


def test_the_picture_marks_where_no_constant_exists():
    model = create_model("lrformer_digits", depth=1, norm="post", attention="dot_product")
    figure = plot_bounds(bounds(model))
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert "no constant for all inputs from here on" in labels
    assert "measured (lower bound)" not in labels


def test_a_model_without_blocks_has_no_picture():
    with pytest.raises(ConfigError, match="no blocks to draw"):
        plot_bounds(bounds(nn.Linear(2, 2)))
