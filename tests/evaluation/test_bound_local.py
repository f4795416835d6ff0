"""Constants on balls are sound: ascent inside a ball never passes them, and they come near the truth."""

import json
import math

import pytest
import torch
from torch import nn
from torch.func import jacrev

from lrformer.attention import DotProductConfig, LRSAConfig
from lrformer.core import ConfigError
from lrformer.evaluation.bound_local import Reach, layer_scale, local_chain
from lrformer.evaluation.bound_measurements import differentiable
from lrformer.evaluation.bound_modules import attention_constants
from lrformer.evaluation.bounds import bounds
from lrformer.lipschitz import ratios_on_ball
from lrformer.lipschitz.norms import max_token_norm
from lrformer.models import PatchTokens, ViTConfig, override
from lrformer.models.certified import CertifiedConfig
from tests.interop.zoo import timm_model

F64 = torch.float64
PICTURE = PatchTokens(img_size=4, patch_size=2, in_chans=1)


def small(*, shake=0.1, seed=0, attention="lrsa", **settings):
    torch.manual_seed(seed)
    defaults = {"embed_dim": 6, "depth": 1, "num_heads": 2, "num_classes": 3, "mlp_ratio": 1.0}
    config = ViTConfig(**defaults | {"tokens": PICTURE, "global_pool": "avg"} | settings)
    model = override(config, {"attention": attention}).build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(shake * torch.randn_like(parameter))
    return model


def images(count=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 4, 4, dtype=F64, generator=generator)


def in_ball(x, step, radius):
    return x + radius * step / step.norm().clamp_min(1)


def steepest(model, x, radius, *, function=None, num_steps=12, seed=0):
    """Return the largest Jacobian norm that ascent finds in the ball of `radius` around one input."""
    with differentiable(model):
        return ascend(function or model, x, radius, num_steps=num_steps, seed=seed)


def ascend(function, x, radius, *, num_steps, seed):
    generator = torch.Generator().manual_seed(seed)
    step = torch.randn(x.shape, dtype=F64, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([step], lr=0.1)
    largest = 0.0
    for _ in range(num_steps):
        y = in_ball(x, step, radius)
        jacobian = jacrev(lambda z: function(z[None])[0].flatten())(y).flatten(1)
        size = torch.linalg.matrix_norm(jacobian, ord=2)
        largest = max(largest, float(size.detach()))
        optimizer.zero_grad()
        (-size.log()).backward()
        optimizer.step()
    return largest


MODELS = [
    {"attention": "lrsa", "norm": "pre"},
    {"attention": "lrsa", "norm": "post"},
    {"attention": LRSAConfig(qkv_bias=True), "norm": "pre"},
    {"attention": LRSAConfig(tie_qk=False, normalizer="floor"), "norm": "pre"},
    {"attention": "dot_product", "norm": "post"},
    {"attention": "l2_provable", "norm": "pre", "final_norm": False},
    {"attention": "lrsa", "norm": "pre", "global_pool": "seq"},
]


@pytest.mark.parametrize("settings", MODELS)
@pytest.mark.parametrize("radius", [1e-3, 0.3])
def test_ascent_in_the_ball_never_passes_the_constants_of_logits_and_of_tokens(settings, radius):
    model, x = small(**settings), images()
    report = bounds(model, x, radius=radius, num_steps=3)
    for index, one in enumerate(x):
        assert steepest(model, one, radius, seed=index) <= report.local.constants[index]
    tokens = next(point for point in report.depth if point.name == "blocks.0")

    def after_block(y):
        caught = []
        handle = model.blocks[0].register_forward_hook(lambda *parts: caught.append(parts[-1]))
        model(y)
        handle.remove()
        return caught[0]

    found = max(steepest(model, one, radius, function=after_block, num_steps=5) for one in x)
    assert found <= tokens.local
    assert math.log10(tokens.local) <= tokens.log10_sound + 1e-9


@pytest.mark.parametrize("radius", [0.02, 0.2])
def test_a_layer_norm_is_bounded_by_the_flattest_token_of_the_ball(radius):
    """Silent blocks leave embedding, norm and head; near a flat token the bound is nearly attained."""
    model = small(global_pool="avg", tokens=PatchTokens(img_size=2, patch_size=2, in_chans=1))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attn.proj" in name or "mlp.fc2" in name:
                parameter.zero_()
        model.pos_embed.zero_()
        model.norm.weight.fill_(1)
        model.tokenizer.proj.bias.fill_(1.0)
        isometry = 3 * torch.linalg.qr(torch.randn(6, 4, dtype=F64)).Q
        model.tokenizer.proj.weight.copy_(isometry.view_as(model.tokenizer.proj.weight))
        model.head.weight.copy_(torch.eye(3, 6, dtype=F64))
    x = 0.13 * images(1)[:, :, :2, :2]
    report = bounds(model, x, radius=radius, num_steps=3)
    # A zero image is a flat token; the straight way there ends inside the ball.
    nearest = x * max(0.0, 1 - radius / float(x.norm()))
    with differentiable(model):
        jacobian = jacrev(model)(nearest).detach().reshape(3, 4)
    found = float(torch.linalg.matrix_norm(jacobian, ord=2))
    assert 0.5 * report.local.constants[0] < found <= report.local.constants[0]


def test_constants_grow_with_the_ball_and_stay_below_the_global_one():
    model, x = small(depth=2), images()
    radii = (1e-8, 1e-4, 1e-2, 1.0)
    found = [max(bounds(model, x, radius=r, num_steps=1).local.constants) for r in radii]
    whole = bounds(model).chain
    assert found == sorted(found)
    assert found[0] < 1e-4 * whole.bound.value
    assert found[-1] <= whole.bound.value * (1 + 1e-9)


def test_on_a_small_ball_a_dot_product_has_the_constant_of_its_longest_token_biases_included():
    model, x = small(attention=DotProductConfig(qkv_bias=True), norm="post", shake=0.5), images()
    attention, seen = model.blocks[0].attn, []
    hook = attention.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    model(x)
    hook.remove()
    longest = float(max_token_norm(seen[0]).max())
    expected = attention_constants(attention, n=4, radius=longest).frobenius.value
    row = next(row for row in bounds(model, x, radius=1e-9).rows if row.name == "blocks.0.attn")
    assert row.local == pytest.approx(expected)


def test_on_a_ball_a_length_free_alpha_is_bounded_as_the_alpha_that_it_stands_for():
    found = []
    for attention in (
        LRSAConfig(alpha=3.0, length_free=True),
        LRSAConfig(alpha=3.0 * math.sqrt(4)),
    ):
        rows = bounds(small(attention=attention), images(), radius=0.01).rows
        found.append(next(row.local for row in rows if row.name == "blocks.0.attn"))
    assert found[0] == pytest.approx(found[1])


def test_a_norm_that_stands_in_two_places_is_not_bounded_by_the_tokens_of_the_first():
    model = small()
    model.blocks[0].norm2 = model.blocks[0].norm1
    rows = {row.name: row for row in bounds(model, images(), radius=1e-3).rows}
    for name in ("blocks.0.norm1", "blocks.0.norm2"):
        assert rows[name].local == rows[name].frobenius.value
    apart = {row.name: row for row in bounds(small(), images(), radius=1e-3).rows}
    assert apart["blocks.0.norm2"].local < apart["blocks.0.norm2"].frobenius.value


def test_a_mean_over_patches_is_bounded_by_their_number_without_the_class_token():
    model = timm_model(
        "vit_tiny_patch16_224", embed_dim=12, num_heads=2, global_pool="avg", fc_norm=False
    )
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    chain = local_chain(model, x, radius=1e-3, embedding=1.0, pool=math.inf)
    tokens = chain.places["blocks.1"] * chain.modules["norm"]
    assert float(chain.pooled) == pytest.approx(float(tokens) / math.sqrt(16))


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({"norm": "pre"}, "norm"),
        ({"norm": "post"}, "blocks.1.norm2"),
    ],
)
def test_on_a_small_ball_pooled_tokens_are_as_long_as_the_last_norm_lets_them_be(settings, last):
    model, x = small(depth=2, global_pool="seq", **settings), images()
    norm, score = model.get_submodule(last), model.pool.score.weight.detach()
    longest = 6**0.5 * float(norm.weight.detach().abs().max()) + float(norm.bias.detach().norm())
    head = float(torch.linalg.matrix_norm(model.head.weight.detach(), ord=2))
    embedding = float(torch.linalg.matrix_norm(model.tokenizer.proj.weight.flatten(1).detach(), 2))
    pool = 1 + longest * float(score.norm())
    chain = local_chain(model, x, radius=1e-6, embedding=embedding, pool=1.0)
    expected = (chain.pooled * pool * head).tolist()
    report = bounds(model, x, radius=1e-6, num_steps=1)
    assert report.local.constants == pytest.approx(expected, rel=1e-6)
    assert max(expected) < 1e-2 * report.chain.bound.value


def test_a_factor_below_zero_stretches_a_branch_by_its_size():
    scale = pytest.importorskip("timm.layers").LayerScale(2)
    scale.gamma = torch.nn.Parameter(torch.tensor([0.5, -3.0]))
    assert layer_scale(scale) == 3.0


def test_a_model_without_a_global_constant_can_have_one_on_a_ball():
    report = bounds(small(attention="dot_product", norm="post"), images(), radius=1e-4, num_steps=1)
    assert report.chain.bound.value == math.inf
    assert max(report.local.constants) < 1e9


def test_predictions_that_are_held_do_not_change_in_their_ball():
    model, x = small(shake=0.02, attention="dot_product"), images(6)
    report = bounds(model, x, radius=1e-5, num_steps=1)
    assert report.local.num_held > 0
    assert max(report.local.radii) <= 1e-5
    for margin, constant, held in zip(
        report.margins, report.local.constants, report.local.radii, strict=True
    ):
        assert held == pytest.approx(min(1e-5, margin / (math.sqrt(2) * constant)))


def test_the_constants_of_an_input_do_not_depend_on_its_neighbors():
    model, x = small(), images(3)
    together = bounds(model, x, radius=0.1, num_steps=1).local.constants
    alone = bounds(model, x[2:], radius=0.1, num_steps=1).local.constants
    assert together[2] == pytest.approx(alone[0], rel=1e-9)


def test_inputs_that_are_measured_one_by_one_have_the_constants_that_they_have_together():
    model, x = small(), images(3)
    together, alone = (
        bounds(model, x, radius=0.1, num_steps=1, batch_size=size) for size in (3, 1)
    )
    assert alone.local.constants == pytest.approx(together.local.constants, rel=1e-9)
    assert len(set(alone.local.constants)) == 3
    for one, other in zip(alone.rows, together.rows, strict=True):
        assert one.local == pytest.approx(other.local, rel=1e-9)


def test_a_certified_model_has_its_global_constant_on_every_ball():
    torch.manual_seed(0)
    config = CertifiedConfig(tokens=PICTURE, embed_dim=6, depth=1, num_heads=2, num_classes=3)
    report = bounds(config.build().double(), images(), radius=0.1, num_steps=1)
    assert set(report.local.constants) == {report.chain.bound.value}
    assert report.local.radii == pytest.approx([min(0.1, r) for r in report.radii])


def test_the_report_says_in_words_and_in_the_table_what_holds_on_the_balls():
    report = bounds(small(depth=2), images(), radius=0.5, num_steps=1)
    text = str(report)
    assert "on balls" in text
    assert "Within 0.5 of an input" in text
    assert "true but vacuous" in report.local.verdict()
    record = json.loads(json.dumps(report.to_record(), allow_nan=False))
    assert record["local"]["verdict"] == report.local.verdict()
    attn = next(row for row in report.rows if row.name == "blocks.0.attn")
    assert attn.local <= attn.frobenius.value * (1 + 1e-9)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_radius_must_be_positive_and_finite(radius):
    with pytest.raises(ConfigError, match=r"radius \(.*\) must be positive and finite"):
        bounds(small(), images(), radius=radius)


def test_a_radius_without_inputs_is_refused():
    with pytest.raises(ConfigError, match="x must hold the inputs"):
        bounds(small(), radius=0.1)


@pytest.mark.parametrize("has_bias", [False, True])
def test_ratios_hold_for_every_step_that_is_small_in_both_norms(has_bias):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, dtype=F64, generator=generator)

    x, w, bias = draw(2, 5, 4), draw(3, 4, 2), draw(3, 2) if has_bias else None
    frobenius, largest = torch.tensor([0.5, 2.0], dtype=F64), torch.tensor([0.3, 0.4], dtype=F64)
    low, high = ratios_on_ball(x, w, frobenius=frobenius, max_token=largest, bias=bias)
    for _ in range(300):
        step = draw(2, 5, 4)
        factor = torch.minimum(
            frobenius / torch.linalg.vector_norm(step, dim=(1, 2)), largest / max_token_norm(step)
        )
        y = x + factor[:, None, None] * step
        q = torch.einsum("bne,hed->bhnd", y, w) + (0 if bias is None else bias[:, None])
        ratio = torch.linalg.vector_norm(q, dim=(-2, -1)) / max_token_norm(y)[:, None]
        assert bool((low <= ratio).all())
        assert bool((ratio <= high * (1 + 1e-12)).all())


def test_a_norm_changes_at_its_price():
    start = Reach(frobenius=torch.tensor([10.0]), max_token=torch.tensor([1.0]))
    by_tokens = start.through(100.0, 3.0, 9)
    # Through the larger token norm: sqrt(9) times 3, and never below what one token moves.
    assert float(by_tokens.frobenius) == pytest.approx(9.0)
    assert float(by_tokens.max_token) == pytest.approx(3.0)
    by_frobenius = start.through(0.2, 3.0, 9)
    assert float(by_frobenius.frobenius) == pytest.approx(2.0)
    assert float(by_frobenius.max_token) == pytest.approx(2.0)


def test_a_reach_of_zero_does_not_hide_a_map_without_a_bound():
    nowhere = Reach(frobenius=torch.zeros(1), max_token=torch.zeros(1)).through(
        math.inf, math.inf, 9
    )
    assert float(nowhere.frobenius) == float(nowhere.max_token) == math.inf


def test_the_factor_of_older_versions_of_timm_is_known_by_its_name_there():
    older = type("LayerScale", (nn.Module,), {"__module__": "timm.models.vision_transformer"})()
    older.gamma = nn.Parameter(torch.tensor([0.5, -3.0]))
    assert layer_scale(older) == 3
    other = type("LayerScale", (nn.Module,), {"__module__": "mine"})()
    other.gamma = older.gamma
    assert layer_scale(other) == math.inf
