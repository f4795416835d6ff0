"""Bounds where a factor is zero, infinite or unknown, and balls on which the global ones are smaller."""

import math

import pytest
from torch import nn

from lrformer.evaluation.bounds import bounds
from lrformer.models import create_model
from tests.evaluation.test_bounds import images, small


def test_a_module_with_parts_of_these_names_is_not_taken_for_their_chain():
    class Scaled(nn.Module):
        def __init__(self, backbone):
            super().__init__()
            self.backbone = backbone
            self.head = nn.Linear(12, 3).double()

        def forward(self, x):
            return self.head(1e6 * self.backbone(x).flatten(1)[:, :12])

    for backbone in (small(num_classes=0), create_model("certified_two_moons")):
        assert bounds(Scaled(backbone)).chain.bound.value == math.inf


def test_a_factor_of_zero_does_not_hide_one_that_is_infinite():
    model = small(attention="dot_product", norm="post", num_classes=3)
    nn.init.zeros_(model.head.weight)
    report = bounds(model, images(2), num_steps=2)
    assert report.chain.bound.value == math.inf
    assert report.chain.bound.reason
    tied = small(num_classes=3)
    for parameter in (tied.head.weight, tied.head.bias):
        nn.init.zeros_(parameter)
    report = bounds(tied, images(2), num_steps=2, radius=0.1)
    assert report.chain.bound.value == 0
    assert report.radii == (0.0, 0.0)
    assert report.local.radii == (0.0, 0.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "dot_product"},
        {"attention": "lrsa_m", "norm": "post", "final_norm": False, "global_pool": "seq"},
        {"norm": "post", "final_norm": False, "global_pool": "seq"},
    ],
    ids=["dot_product", "m", "paper"],
)
def test_what_holds_everywhere_holds_on_a_ball(settings):
    report = bounds(small(**settings, num_classes=3), images(2), num_steps=2, radius=1.0)
    assert max(report.local.constants) <= report.chain.bound.value
    for row in report.rows:
        assert row.local <= row.frobenius.value
    for point in report.depth:
        assert point.local <= 10**point.log10_sound * (1 + 1e-9)
