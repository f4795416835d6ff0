"""Bounds where a factor is zero, infinite or unknown, and balls on which the global ones are smaller."""

import copy
import math

import pytest
import torch
from torch import nn

from lrformer.evaluation.bounds import bounds
from lrformer.evaluation.bounds_report import NO_CLASSES, NOT_CERTIFIABLE
from lrformer.heads import RandomFeatureGPConfig
from lrformer.models import create_model
from lrformer.training import fit_posterior
from tests.evaluation.test_bounds import images, small
from tests.methods.tiny import small_method


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


@pytest.mark.parametrize(
    ("settings", "is_certifiable"),
    [
        ({}, True),
        ({"likelihood": "softmax"}, False),
        ({"approximation": "monte_carlo"}, False),
    ],
    ids=["mean_field", "softmax", "monte_carlo"],
)
def test_a_radius_is_given_only_where_the_class_is_that_of_the_mean_logits(
    settings, is_certifiable
):
    points, labels = two_classes()
    loader = [points, points]
    config = RandomFeatureGPConfig(
        num_random_features=64, feature_scale="calibrate", mean_field_factor=20.0, **settings
    )
    model = trained(points, labels)
    fitted = fit_posterior(model, loader, config=config)
    close, distances = on_the_boundary(fitted, points)
    report = bounds(fitted, close, num_steps=1, radius=0.1)
    assert report.is_certifiable == is_certifiable
    for radii in (report.radii, report.local.radii):
        # Half a step of the bisection more than the distance to another class.
        assert all(r <= 1.5 * d for r, d in zip(radii, distances, strict=bool(radii)))
    inside = bounds(fitted, points[:8], num_steps=1, radius=0.1)
    assert (max(inside.radii) > 0) == (max(inside.local.radii, default=0) > 0) == is_certifiable
    assert (NOT_CERTIFIABLE in str(inside)) == (not is_certifiable)
    assert ("cannot change" in str(inside)) == is_certifiable


def two_classes() -> tuple[torch.Tensor, torch.Tensor]:
    points = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    return points, (points[:, 0] > 0).long()


def trained(points, labels):
    torch.manual_seed(0)
    model = create_model("certified_two_moons", depth=1, embed_dim=8, num_heads=2, num_classes=2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()
    return model.eval()


def on_the_boundary(model, points) -> tuple[torch.Tensor, list[float]]:
    """Return points next to which `predict` says another class, and how far away that is."""

    def classes(x):
        return model.predict(x, torch.Generator().manual_seed(0)).probs.argmax(-1)

    here, there = points[:100], points[100:]
    differ = classes(here) != classes(there)
    here, there = here[differ], there[differ]
    first = classes(here)
    for _ in range(20):
        middle = (here + there) / 2
        is_same = (classes(middle) == first).unsqueeze(-1)
        here, there = torch.where(is_same, middle, here), torch.where(is_same, there, middle)
    return here, (here - there).norm(dim=-1).tolist()


def test_a_subclass_of_a_posterior_may_give_other_logits():
    points, labels = two_classes()
    fitted = fit_posterior(trained(points, labels), [points])
    assert bounds(fitted).chain.bound.is_finite
    fitted.__class__ = type("Loud", (type(fitted),), {})
    report = bounds(fitted, points[:2], num_steps=1)
    assert report.chain.bound.value == math.inf
    assert report.radii == (0.0, 0.0)


def test_a_posterior_around_a_method_that_samples_certifies_nothing():
    method = small_method("mc_dropout", head_drop_rate=0.1).eval()
    fitted = fit_posterior(method, [torch.randn(40, 1, 8, 8)])
    report = bounds(fitted, torch.randn(2, 1, 8, 8), num_steps=1)
    assert not report.is_certifiable
    assert report.radii == (0.0, 0.0)


@torch.no_grad()
def test_the_class_of_duq_is_that_of_its_logits():
    method = small_method("duq").eval()
    x = torch.randn(40, 1, 8, 8)
    assert bounds(method, x[:2], num_steps=1).is_certifiable
    assert torch.equal(method.predict(x).probs.argmax(-1), method(x).argmax(-1))


@pytest.mark.parametrize("name", ["dnn_sn", "sngp"])
def test_measuring_a_spectrally_normalized_model_leaves_it_whole(name):
    method = small_method(name, lambda: small(num_classes=0).float()).eval()
    x = images(2).float()
    with torch.no_grad():
        expected = method(x)
    report = bounds(method, x, num_steps=1, radius=1e-3)
    assert report.local is not None
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(method)(x), expected)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("deterministic", {}, True),
        ("dnn_sn", {}, True),
        ("sngp", {}, True),
        ("sngp", {"approximation": "monte_carlo"}, False),
        ("lrformer", {"head": "linear"}, True),
        ("lrformer", {"likelihood": "softmax"}, False),
        ("mc_dropout", {"head_drop_rate": 0.1}, False),
        ("mcd_gp", {"head_drop_rate": 0.1}, False),
        ("due", {}, False),
        ("duq", {}, True),
        ("deep_ensemble", {}, False),
    ],
)
def test_methods_say_whether_their_predictions_follow_their_logits(name, settings, expected):
    assert small_method(name, **settings).predicts_by_logits == expected


def test_one_logit_has_no_margin_and_no_radius():
    report = bounds(small(num_classes=1), images(2), num_steps=1, radius=1e-3)
    assert report.margins == report.radii == report.local.radii == ()
    assert len(report.measured) == len(report.local.constants) == 2
    assert "not logits of two classes or more" in str(report)
    assert "cannot change" not in str(report)


@pytest.mark.parametrize("name", ["deterministic", "mc_dropout"])
def test_where_nothing_was_measured_nothing_is_said_of_radii(name):
    report = bounds(small_method(name, lambda: small(num_classes=0, proj_drop_rate=0.1)))
    assert report.is_certifiable == (name == "deterministic")
    assert report.measured == report.radii == ()
    assert NO_CLASSES not in str(report)
    assert NOT_CERTIFIABLE not in str(report)


def test_norms_without_eps_have_no_constant_neither_a_sound_nor_the_printed_one():
    model = small(num_classes=3)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.0
    report = bounds(model, images(2), num_steps=1, radius=1e-9)
    assert report.chain.bound.value == math.inf
    first = next(row for row in report.rows if row.name == "blocks.0.norm1")
    assert first.frobenius.value == first.printed.value == math.inf
    # Where no token is flat there is one on a ball.
    assert max(report.measured) <= max(report.local.constants) < math.inf


def test_a_branch_of_factor_zero_does_not_hide_an_attention_without_a_constant():
    model = pytest.importorskip("timm").create_model(
        "vit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=3, img_size=32, init_values=1e-9
    )
    model.blocks[0].attn.gate = nn.Linear(24, 24)
    nn.init.zeros_(model.blocks[0].ls1.gamma)
    nn.init.normal_(model.head.weight)
    report = bounds(model.eval(), images(2, size=32, channels=3).float(), num_steps=1, radius=1e-3)
    assert report.chain.bound.value == math.inf
    assert report.local.constants == (math.inf, math.inf)
    assert report.local.radii == (0.0, 0.0)


def test_sequence_pooling_without_a_norm_before_it_has_no_constant_on_balls_either():
    settings = {"global_pool": "seq", "norm": "pre", "final_norm": False, "num_classes": 3}
    model = small(**settings)
    report = bounds(model, images(2), num_steps=1, radius=1e-6)
    assert report.local.constants == (math.inf, math.inf)
    assert report.local.radii == (0.0, 0.0)
    nn.init.zeros_(model.head.weight)  # zero times infinity is no number
    report = bounds(model, images(2), num_steps=1, radius=1e-6)
    assert report.local.constants == (math.inf, math.inf)
    assert report.local.radii == (0.0, 0.0)


def test_where_the_global_constant_is_more_than_a_float_holds_a_small_ball_has_its_own():
    model = small(num_classes=3)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-200
    report = bounds(model, images(2), num_steps=1, radius=1e-9)
    places = {place.name: place for place in report.depth}
    assert 308 < places["blocks.1"].log10_sound < math.inf
    for place in places.values():
        assert place.local < 1e30


def test_a_spectrally_normalized_model_in_training_is_left_as_it_was():
    method = small_method("sngp", lambda: small(num_classes=0).float(), spectral_bound=0.5).train()
    before = copy.deepcopy(method.state_dict())
    report = bounds(method, images(2).float(), num_steps=1)
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert all(module.training for module in method.modules())
    assert report.chain.log10 == bounds(method.eval()).chain.log10
