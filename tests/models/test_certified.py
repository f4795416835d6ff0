"""A certified transformer keeps distances within its budget at every pair that ascent can find."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from lrformer.core import ConfigError
from lrformer.lipschitz.attention import anchored_l2_attention, centered_anchored_l2_attention
from lrformer.models import PatchTokens, VectorTokens, create_model
from lrformer.models.certified import CertifiedConfig
from lrformer.models.certified_branches import AnchoredAttention, CenteredMlp
from lrformer.models.certified_prior import anchored_prior
from tests.tolerance import assert_close

F64 = torch.float64
PICTURE = PatchTokens(img_size=4, patch_size=2, in_chans=1)


def small(*, seed=0, tokens=PICTURE, **settings):
    torch.manual_seed(seed)
    settings = {"embed_dim": 12, "depth": 1, "num_heads": 3, "num_classes": 3} | settings
    return CertifiedConfig(tokens=tokens, **settings).build().double().eval()


def shake(model, size):
    """Move every weight away from its gentle start, so that attention is sharp and budgets bind."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))
        for block in model.blocks:
            block.attn.log_temperature.uniform_(-2, 4)


def extreme_distortion(model, sign, *, seed, num_steps=60):
    """Return the largest (sign 1) or smallest (sign -1) change of distance that ascent on a pair finds."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, model.num_tokens, model.embed_dim)
    x = torch.randn(shape, dtype=F64, generator=generator).requires_grad_()
    step = torch.randn(shape, dtype=F64, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([x, step], lr=0.1)
    worst = -math.inf
    with torch.no_grad():
        scales = model.scales()
    for _ in range(num_steps):
        images = []
        for tokens in (x, x + step):
            for index, block in enumerate(model.blocks):
                tokens = block(tokens, scales[2 * index], scales[2 * index + 1])
            images.append(tokens)
        ratio = (images[0] - images[1]).norm() / step.norm()
        worst = max(worst, sign * float(ratio.detach()))
        optimizer.zero_grad()
        (-sign * ratio.log()).backward()
        optimizer.step()
    return sign * worst


@pytest.mark.parametrize("budget", [0.3, 0.9])
@pytest.mark.parametrize("tokens", [PICTURE, VectorTokens(num_inputs=2, num_tokens=5)])
def test_no_pair_is_stretched_or_shrunk_beyond_the_certificate(budget, tokens):
    for seed in range(2):
        model = small(seed=seed, tokens=tokens, attn_budget=budget, mlp_budget=budget)
        shake(model, 1.0)
        certificate = model.certificate()
        assert certificate.norm == "F"
        assert all(constant <= budget for constant in certificate.branches)
        assert (1 - budget) ** 2 <= certificate.lower <= 1 <= certificate.upper <= (1 + budget) ** 2
        assert extreme_distortion(model, 1, seed=seed) <= certificate.upper
        assert extreme_distortion(model, -1, seed=seed) >= certificate.lower


def test_the_ascent_would_notice_a_branch_without_its_scale():
    model = small()
    shake(model, 1.0)
    certificate = model.certificate()
    for branch in model.branches():
        branch.scale = lambda sigma_in, sigma_out: torch.ones((), dtype=F64)
    model._cached = None
    assert extreme_distortion(model, 1, seed=0) > certificate.upper


@pytest.mark.parametrize("self_weight", [0.2, 0.5, 0.8])
def test_the_bracket_bounds_the_jacobian_of_the_attention_between_its_matrices(self_weight):
    prior = anchored_prior(4, 3, self_weight=self_weight, grid_size=(2, 2))
    branch = AnchoredAttention(12, prior, budget=0.5).double()
    largest = 0.0
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        u = torch.randn(4, 12, dtype=F64, generator=generator).requires_grad_()
        branch.log_temperature.data.fill_(float(seed) - 2)
        optimizer = torch.optim.Adam([u, branch.log_temperature], lr=0.1)
        for _ in range(25):
            jacobian = jacrev(lambda y: branch.inner(y[None])[0])(u)
            size = torch.linalg.matrix_norm(jacobian.reshape(48, 48), ord=2)
            largest = max(largest, float(size.detach()))
            optimizer.zero_grad()
            (-size).backward()
            optimizer.step()
    assert 0.3 * branch.bracket < largest <= branch.bracket


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_cast_rounds_the_weights_but_not_the_prior_that_the_bound_is_made_of(dtype):
    model = small(self_weight=0.9)
    before = [block.attn.log_prior.double().clone() for block in model.blocks]
    model.to(dtype)
    after = [block.attn.log_prior.double() for block in model.blocks]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert model.blocks[0].attn.weight_in.dtype == dtype


def test_centering_lowers_the_constant_of_attention():
    for self_weight in (0.5, 0.8):
        prior = anchored_prior(16, 1, self_weight=self_weight)[0]
        assert centered_anchored_l2_attention(prior) < anchored_l2_attention(prior, norm="F")


def test_the_centered_activation_has_slopes_within_one_and_reaches_it():
    branch = CenteredMlp(1, 1, budget=0.5).double()
    z = torch.linspace(-10, 10, 200_001, dtype=F64)[:, None].requires_grad_()
    slope = torch.autograd.grad(branch.inner(z).sum(), z)[0].abs().max()
    assert float(slope) == pytest.approx(1, abs=1e-6)
    assert float(slope) <= 1 + 1e-11


@pytest.mark.parametrize("budget", [0.5, 0.9, 0.999])
def test_the_inverse_finds_the_tokens_to_ten_digits(budget):
    model = small(depth=2, attn_budget=budget, mlp_budget=budget)
    shake(model, 0.5)
    tokens = 3 * torch.randn(2, model.num_tokens, model.embed_dim, dtype=F64)
    with torch.no_grad():
        images = model.forward_blocks(tokens)
    assert float((model.inverse(images) - tokens).abs().max()) <= 1e-10


def test_the_inverse_is_as_accurate_as_it_is_asked_to_be_where_it_converges_slowly():
    budget = 0.99
    model = small(mlp_ratio=1.0, mlp_budget=budget, attn_budget=0.5)
    with torch.no_grad():
        mlp = model.blocks[0].mlp
        model.blocks[0].attn.weight_out.zero_()
        # At sqrt(2) the activation is steepest: the branch is -0.99 x there, and x = y - g(x) creeps.
        mlp.weight_in.copy_(torch.eye(12))
        mlp.weight_out.copy_(-torch.eye(12))
        mlp.bias_in.fill_(math.sqrt(2))
        tokens = 1e-3 * torch.randn(2, model.num_tokens, model.embed_dim, dtype=F64)
        images = model.forward_blocks(tokens)
        found = model.inverse(images, tolerance=1e-6)
    assert float((found - tokens).abs().max()) <= 1.1e-6 * float(images.abs().max())


def test_scales_are_computed_again_after_any_change_of_a_weight():
    model = small()
    with torch.no_grad():
        before = model.scales()
        assert model.scales() is before
        model.blocks[0].mlp.weight_in.data.mul_(3)
        after = model.scales()
        assert float(after[1]) == pytest.approx(float(before[1]) / 3, rel=1e-6)
        model.load_state_dict(small(seed=1).state_dict())
        assert model.scales() is not after
    x = torch.randn(2, 1, 4, 4, dtype=F64)
    with torch.no_grad():
        cached = model(x)
    assert torch.allclose(cached, model(x), rtol=1e-5)


def test_scales_are_computed_again_after_a_change_of_one_bit():
    model = small()
    with torch.no_grad():
        before = model.scales()
        weight = model.blocks[0].mlp.weight_in.data
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(math.inf, dtype=F64))
        assert model.scales() is not before


def test_folded_scales_are_those_of_the_moment_and_no_longer_in_the_graph():
    model = small()
    shake(model, 0.5)
    x = torch.randn(3, 1, 4, 4, dtype=F64)

    def num_operations():
        with torch.no_grad():
            parts = torch.export.export(model, (x,)).graph_module.modules()
        return sum(len(part.graph.nodes) for part in parts if hasattr(part, "graph"))

    with torch.no_grad():
        before, scales, computing = model(x), model.scales().clone(), num_operations()
        model.fold_scales()
        assert torch.equal(model(x), before)
        assert num_operations() < computing - 20
        model.blocks[0].mlp.weight_in.mul_(3)
        assert torch.equal(model.scales(), scales)
    assert scales.min() < 1


def test_weights_that_vmap_stacks_leave_nothing_behind():
    members = [small(seed=seed) for seed in range(2)]
    x = torch.randn(2, 1, 4, 4, dtype=F64)
    model = members[0]
    with torch.no_grad():
        expected = torch.stack([member(x) for member in members])
        for is_cached in (True, False):
            if not is_cached:
                model._cached = None
            for _ in range(2):
                weights, buffers = torch.func.stack_module_state(members)
                stacked = torch.vmap(lambda *state: functional_call(model, state, (x,)))
                assert_close(stacked(weights, buffers), expected, 1e-12)
            assert_close(model(x), expected[0], 1e-12)


def test_scales_that_are_transformed_are_computed_in_float64_as_those_that_are_kept():
    model = small().float()
    shake(model, 0.3)
    with torch.no_grad():
        weights, buffers = torch.func.stack_module_state([model])
        transformed = torch.vmap(lambda *state: functional_call(_Scales(model), state))
        state = (
            {f"model.{name}": value for name, value in part.items()} for part in (weights, buffers)
        )
        found, expected = transformed(*state)[0], model.scales()
    assert found.dtype == expected.dtype == F64
    assert_close(found, expected, 1e-12)


class _Scales(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        return self.model.scales()


def test_weights_that_are_handed_in_have_scales_of_their_own():
    model, other = small(), small(seed=1)
    x = torch.randn(2, 1, 4, 4, dtype=F64)
    with torch.no_grad():
        expected = model(x)
        assert_close(functional_call(model, other.state_dict(), (x,)), other(x), 1e-12)
        assert_close(model(x), expected, 1e-12)


@pytest.mark.unhooked
def test_without_gradients_it_compiles_to_one_graph_and_exports_after_a_prediction():
    model = small()
    x = torch.randn(2, 1, 4, 4, dtype=F64)
    with torch.no_grad():
        expected = model(x)
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for _ in range(2):
            assert_close(compiled(x), expected, 1e-12)
        model.blocks[0].mlp.weight_in.mul_(3)
        changed = model(x)
        assert not torch.equal(changed, expected)
        assert_close(compiled(x), changed, 1e-12)
        exported = torch.export.export(model, (x,)).module()
        assert_close(exported(x), changed, 1e-12)
        assert_close(model(x), changed, 1e-12)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_without_gradients_it_is_traced_before_and_after_a_prediction():
    x = torch.randn(2, 1, 4, 4, dtype=F64)
    for has_predicted in (False, True):
        model = small()
        with torch.no_grad():
            if has_predicted:
                model(x)
            assert_close(torch.jit.trace(model, (x,))(x), model(x), 1e-12)


def test_training_differentiates_through_the_scales():
    model = small().train()
    shake(model, 0.3)
    weight = model.blocks[0].mlp.weight_out
    x = torch.randn(2, 1, 4, 4, dtype=F64)
    model(x).square().sum().backward()
    # Beyond its budget a branch does not change when this matrix grows: no gradient along it.
    assert weight.grad is not None
    inner = (weight.grad * weight.detach()).sum()
    assert abs(float(inner)) < 1e-6 * float(weight.grad.norm() * weight.detach().norm())


def test_a_branch_below_its_budget_is_left_alone():
    model = small()
    with torch.no_grad():
        for branch in model.branches():
            branch.weight_in.mul_(0.01)
        assert model.scales().tolist() == [1.0, 1.0]
    assert max(model.certificate().branches) < 0.05


def test_the_certificate_reaches_from_the_input_to_the_logits():
    model = small(depth=2)
    shake(model, 0.5)
    certificate = model.certificate()
    x = torch.randn(1, 4, 4, dtype=F64)

    def norm_of(function):
        jacobian = jacrev(lambda y: function(y[None])[0])(x)
        return torch.linalg.svdvals(jacobian.detach().reshape(-1, 16))

    features = norm_of(model.forward_features)
    assert float(features[0]) <= certificate.input_upper
    assert 0 < certificate.input_lower <= float(features[-1])
    assert float(norm_of(model)[0]) <= certificate.logits_upper


def test_average_pooling_divides_the_constant_of_the_logits_by_the_root_of_the_tokens():
    flat, averaged = (small(global_pool=kind).certificate() for kind in ("flatten", "avg"))
    assert flat.input_upper == pytest.approx(averaged.input_upper)
    model = small(global_pool="avg")
    sigma = float(torch.linalg.matrix_norm(model.head.weight.detach(), ord=2))
    assert averaged.logits_upper == pytest.approx(averaged.input_upper * sigma / 2)


def test_a_head_that_is_not_known_has_no_constant():
    model = small()
    model.head = nn.Sequential(nn.Linear(model.head.in_features, 3).double())
    assert model.certificate().logits_upper == math.inf


def test_fewer_channels_than_pixels_lose_the_lower_constant_of_the_input():
    model = small(embed_dim=3, num_heads=3)
    assert model.certificate().input_lower == 0
    assert model.certificate().lower > 0


def test_a_prior_has_unit_rows_its_self_weight_and_looks_where_it_should():
    prior = anchored_prior(16, 6, self_weight=0.5, grid_size=(4, 4))
    assert torch.allclose(prior.sum(-1), torch.ones(6, 16, dtype=F64))
    assert torch.allclose(prior.diagonal(dim1=-2, dim2=-1), torch.full((6, 16), 0.5, dtype=F64))
    others = prior - 0.5 * torch.eye(16, dtype=F64)
    # Token 5 stands in row 1, column 1: right is 6, left 4, down 9, up 1.
    assert others[2:, 5].argmax(-1).tolist() == [6, 4, 9, 1]
    assert torch.allclose(others[0, 5, :5], torch.full((5,), 0.5 / 15, dtype=F64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attn_budget": 1.0}, r"budget \(1.0\)"),
        ({"self_weight": 0.0}, r"self_weight \(0.0\)"),
        ({"num_heads": 5}, r"num_heads \(5\) must divide embed_dim \(12\)"),
        ({"global_pool": "token"}, r"global_pool \('token'\)"),
    ],
)
def test_settings_without_a_certificate_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        small(**settings)


def test_presets_build_without_memory_and_train_a_step():
    for name in ("certified_two_moons", "certified_two_moons_depth9", "certified_digits"):
        with torch.device("meta"):
            assert create_model(name).certificate is not None
    model = create_model("certified_digits", depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(16, 1, 8, 8), torch.randint(10, (16,))
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]


def test_two_moons_are_separated_without_error_and_with_a_certificate():
    from lrformer.data.two_moons import two_moons

    torch.manual_seed(0)
    train, test = (two_moons(1000, noise=0.05, seed=seed) for seed in (0, 100))
    mean, std = torch.tensor(train.mean), torch.tensor(train.std)
    x, y = (torch.from_numpy(train.x) - mean) / std, torch.from_numpy(train.y)
    model = create_model("certified_two_moons", num_classes=2)
    epochs, batch = 12, 50
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=epochs * 20)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        predicted = model((torch.from_numpy(test.x) - mean) / std).argmax(-1)
    assert bool((predicted == torch.from_numpy(test.y)).all())
    assert model.certificate().lower >= 0.5**6 * (1 - 1e-9)


def test_a_branch_of_zero_has_a_gradient():
    model = create_model("certified_two_moons", num_classes=2)
    torch.nn.init.zeros_(model.blocks[0].mlp.weight_out)
    model(torch.randn(3, 2)).square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.blocks[0].mlp.weight_out.grad.norm() > 0
