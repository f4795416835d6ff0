import math

import numpy as np
import pytest
import torch

from lrformer.recipes.figure3 import find_maximum, reproduce_figure3
from lrformer.reports.gelu_figure import gelu, gelu_derivative
from lrformer.training.atomic_files import read_json


def test_both_curves_are_those_of_torch():
    x = torch.linspace(-5, 5, 101, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.gelu(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert np.allclose(gelu(x.detach().numpy()), y.detach().numpy(), atol=1e-12)
    assert np.allclose(gelu_derivative(x.detach().numpy()), slope.numpy(), atol=1e-12)


def test_the_maximum_is_the_closed_form_and_the_packages_constant_is_no_smaller():
    found = find_maximum()
    assert found.x == pytest.approx(math.sqrt(2), abs=1e-15)
    closed = (1 + math.erf(1)) / 2 + 1 / (math.e * math.sqrt(math.pi))
    assert found.derivative == pytest.approx(closed, abs=1e-14)
    assert found.derivative <= found.constant < found.derivative + 1e-9


def test_no_point_of_a_dense_line_is_steeper():
    assert gelu_derivative(np.linspace(-10, 10, 200_001)).max() <= find_maximum().derivative


def test_pictures_and_record_are_written_with_what_was_found(tmp_path):
    found = reproduce_figure3(tmp_path)
    assert read_json(tmp_path / "figure3.json")["maximum"]["derivative"] == found.derivative
    assert (tmp_path / "figure3.png").stat().st_size > 10_000
    assert f"{found.derivative:.6f}"[:6] == "1.1289"
    assert (tmp_path / "figure3.svg").read_text().startswith("<?xml")
