"""Muon against a slow reference, which weights it takes for matrices, and whole runs with it."""

import math

import pytest
import torch
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.methods import create_method
from lrformer.models import create_model
from lrformer.training import OptimizerConfig, train
from lrformer.training.muon import Muon, matrix_updates, orthogonalize
from lrformer.training.optimizers import build_optimizer, parameter_groups
from lrformer.training.state import load_optimizer, optimizer_tensors, read_state
from tests.tolerance import TOLERANCE, assert_close
from tests.training.interruption import interrupt, stop_at
from tests.training.small import QUIET, small, weights

CPU = torch.device("cpu")
LR, DECAY, BETAS, EPS = 0.02, 0.1, (0.9, 0.99), 1e-8


def slow_orthogonal(matrix: Tensor) -> Tensor:
    """Return the quintic of the singular values, five times, with the singular vectors as they are."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ values.diag() @ right


def slow_matrix_steps(weight: Tensor, grads: list[Tensor], rates: list[float]) -> Tensor:
    """Return a matrix after one step of Muon for each gradient, in the textbook form of the momentum."""
    velocity = torch.zeros_like(weight)
    for grad, lr in zip(grads, rates, strict=True):
        velocity = 0.95 * velocity + grad
        update = slow_orthogonal(grad + 0.95 * velocity)
        weight = (1 - lr * DECAY) * weight - lr * 0.2 * math.sqrt(max(weight.shape)) * update
    return weight


def slow_adamw_steps(weight: Tensor, grads: list[Tensor], rates: list[float]) -> Tensor:
    first = second = torch.zeros_like(weight)
    for count, (grad, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        first = BETAS[0] * first + (1 - BETAS[0]) * grad
        second = BETAS[1] * second + (1 - BETAS[1]) * grad**2
        scale = (second / (1 - BETAS[1] ** count)).sqrt() + EPS
        weight = (1 - lr * DECAY) * weight - lr * (first / (1 - BETAS[0] ** count)) / scale
    return weight


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def muon(groups: list[dict], lr: float | Tensor = LR) -> Muon:
    return Muon(groups, lr=lr, betas=BETAS, eps=EPS, weight_decay=DECAY)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_tensor", [False, True])
def test_steps_are_the_slow_ones_while_the_rate_changes(dtype, is_tensor):
    shapes = {"wide": (4, 7), "tall": (7, 4), "kernel": (6, 3, 2, 2), "qkv": (12, 4), "bias": (5,)}
    start = {name: draw(*shape, seed=index) for index, (name, shape) in enumerate(shapes.items())}
    grads = {
        name: [draw(*shape, seed=100 * step + index) for step in range(1, 6)]
        for index, (name, shape) in enumerate(shapes.items())
    }
    rates = [LR, LR / 2, 2 * LR, LR, LR / 4]
    fast = {name: nn.Parameter(value.to(dtype, copy=True)) for name, value in start.items()}
    lr = torch.tensor(LR, dtype=torch.float64) if is_tensor else LR
    groups = [
        {"params": [fast["wide"], fast["tall"], fast["kernel"]], "is_matrix": True},
        {"params": [fast["qkv"]], "is_matrix": True, "num_parts": 3},
        {"params": [fast["bias"]]},
    ]
    optimizer = muon(groups, lr)
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            if isinstance(lr, Tensor):
                lr.fill_(rate)
            else:
                group["lr"] = rate
        for name, parameter in fast.items():
            parameter.grad = grads[name][step].to(dtype)
        optimizer.step()

    expected = {
        name: slow_matrix_steps(start[name], grads[name], rates) for name in ("wide", "tall")
    }
    flat = [grad.flatten(1) for grad in grads["kernel"]]
    expected["kernel"] = slow_matrix_steps(start["kernel"].flatten(1), flat, rates)
    parts = [slow_matrix_steps(start["qkv"][i : i + 4], [g[i : i + 4] for g in grads["qkv"]], rates)
             for i in (0, 4, 8)]  # fmt: skip
    expected["qkv"] = torch.cat(parts)
    expected["bias"] = slow_adamw_steps(start["bias"], grads["bias"], rates)
    for name, parameter in fast.items():
        assert_close(parameter.detach(), expected[name].reshape(shapes[name]), TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 96)])
def test_an_update_is_nearly_orthogonal_and_moves_as_far_as_adamw(shape):
    gradient = draw(1, *shape, dtype=torch.float32)
    (update,) = matrix_updates([1e-6 * gradient])
    values = torch.linalg.svdvals(update[0]) / (0.2 * math.sqrt(max(shape)))
    assert values.min() > 0.65
    assert values.max() < 1.25
    assert float(update.square().mean().sqrt()) == pytest.approx(0.2, rel=0.25)


def test_a_batch_is_made_orthogonal_as_one_by_one():
    shapes = [(1, 6, 6), (1, 4, 9), (3, 6, 6), (1, 9, 4), (2, 4, 9)]
    stacks = [draw(*shape, seed=index) for index, shape in enumerate(shapes)]
    together = matrix_updates(stacks)
    for stack, updates in zip(stacks, together, strict=True):
        assert updates.shape == stack.shape
        for matrix, update in zip(stack, updates, strict=True):
            (alone,) = matrix_updates([matrix[None]])
            assert_close(update, alone[0], TOLERANCE[torch.float64])


def test_no_gradient_is_no_step():
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_a_weight_without_a_gradient_stays_and_the_others_move_as_without_it():
    def step(names: tuple[str, ...]) -> dict[str, nn.Parameter]:
        shapes = {"first": (4, 4), "last": (4, 4), "bias": (3,), "scale": (3,)}
        made = {name: nn.Parameter(draw(*shape)) for name, shape in shapes.items()}
        groups = [{"params": [made["first"], made["last"]], "is_matrix": True},
                  {"params": [made["bias"], made["scale"]]}]  # fmt: skip
        for index, name in enumerate(names):
            made[name].grad = draw(*shapes[name], seed=index + 1)
        muon(groups).step()
        return made

    found, whole = step(("last", "scale")), step(("last", "scale", "first", "bias"))
    for name in ("first", "bias"):
        assert torch.equal(found[name].detach(), draw(*found[name].shape))
    for name in ("last", "scale"):
        assert_close(found[name].detach(), whole[name].detach(), TOLERANCE[torch.float64])


def groups_of(method: nn.Module, **changes) -> tuple[list[dict], dict[str, dict]]:
    """Return the groups for Muon, and that of every parameter by its name."""
    config = OptimizerConfig(name="muon", **changes)
    groups = parameter_groups(method, method.parameters(), config)
    group_of = {id(p): group for group in groups for p in group["params"]}
    return groups, {name: group_of[id(p)] for name, p in method.named_parameters()}


def matrices_of(method: nn.Module) -> dict[str, int]:
    """Return the names of what goes by Muon, with the number of matrices in each."""
    _, by_name = groups_of(method)
    return {name: g["num_parts"] for name, g in by_name.items() if g.get("is_matrix")}


@pytest.mark.parametrize(("tie_qk", "parts"), [(True, 2), (False, 3)])
@pytest.mark.parametrize("method_name", ["deterministic", "lrformer", "due"])
def test_only_the_inside_of_a_transformer_goes_by_muon(method_name, tie_qk, parts):
    def backbone() -> nn.Module:
        return create_model(
            "lrformer_compact_32", num_classes=0, depth=1, embed_dim=16, num_heads=2, num_convs=2,
            tie_qk=tie_qk, learnable_alpha=True,
        )  # fmt: skip

    method = create_method(method_name, backbone, 10)
    found = matrices_of(method)
    plain = {name.replace("parametrizations.weight.original", "weight") for name in found}
    block = "backbone.blocks.0"
    assert plain == {
        "backbone.tokenizer.convs.1.weight",
        f"{block}.attn.qkv.weight",
        f"{block}.attn.proj.weight",
        f"{block}.mlp.fc1.weight",
        f"{block}.mlp.fc2.weight",
    }
    assert {name for name, number in found.items() if number > 1} == {f"{block}.attn.qkv.weight"}
    assert found[f"{block}.attn.qkv.weight"] == parts


def test_embeddings_and_kernels_that_are_no_matrix_are_left_to_adamw():
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.Embedding(6, 4),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.ConvTranspose2d(4, 4, 3),
        nn.Linear(4, 1),
        nn.Conv2d(4, 4, 3),
    )
    assert matrices_of(model) == {"5.weight": 1}


def test_a_single_row_and_a_single_column_are_no_matrices():
    model = nn.Sequential(*(nn.Linear(*sides) for sides in ((4, 6), (6, 1), (1, 6), (6, 5))))
    groups = parameter_groups(model, model.parameters(), OptimizerConfig(name="muon"))
    matrices = [p for group in groups if group.get("is_matrix") for p in group["params"]]
    assert [p is model[3].weight for p in matrices] == [True]


def test_what_adamw_takes_inside_muon_is_decayed_as_without_it():
    def backbone() -> nn.Module:
        return create_model("lrformer_digits", num_classes=0, depth=1)

    method = create_method("deterministic", backbone, 4)
    groups, by_name = groups_of(method, weight_decay=0.3)
    plain = parameter_groups(method, method.parameters(), OptimizerConfig(weight_decay=0.3))
    decayed = {id(p) for group in plain if group["weight_decay"] for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(by_name)
    for name, parameter in method.named_parameters():
        assert by_name[name]["weight_decay"] == (0.3 if id(parameter) in decayed else 0.0)
    assert not any("is_matrix" in group for group in plain)
    assert by_name["head.weight"]["weight_decay"] == 0.3


def test_only_the_inside_of_a_residual_network_goes_by_muon():
    model = create_model("wide_resnet28_10", num_classes=10, depth=10, widen_factor=1)
    inside = {n for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 4}
    assert set(matrices_of(model)) == inside
    assert len(inside) == 8  # two a block, and two shortcuts


def test_every_member_of_an_ensemble_has_a_first_layer_of_its_own():
    def backbone() -> nn.Module:
        return create_model("lrformer_digits", num_classes=0, depth=1)

    method = create_method("deep_ensemble", backbone, 3, num_members=2)
    names = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    wanted = {f"members.{m}.0.blocks.0.{name}.weight" for m in (0, 1) for name in names}
    assert set(matrices_of(method)) == wanted


def test_a_distilled_timm_model_keeps_both_classifiers_out():
    import timm

    model = timm.create_model("deit_tiny_distilled_patch16_224", depth=1, num_classes=5)
    names = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert matrices_of(model) == {f"blocks.0.{name}.weight": 1 for name in names}


def test_a_saved_state_goes_on_to_the_same_bits():
    def build() -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        parameters = [nn.Parameter(draw(*s, dtype=torch.float32)) for s in ((6, 4), (4, 4), (5,))]
        groups = [{"params": parameters[:2], "is_matrix": True, "weight_decay": 0.1},
                  {"params": parameters[2:], "weight_decay": 0.0}]  # fmt: skip
        return parameters, build_optimizer(OptimizerConfig(name="muon", lr=0.1), groups, CPU)

    def walk(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, steps: range):
        for step in steps:
            for parameter in parameters:
                parameter.grad = draw(*parameter.shape, seed=step, dtype=torch.float32)
            optimizer.step()

    whole, optimizer = build()
    walk(whole, optimizer, range(3))
    kept = {name: value.clone() for name, value in optimizer_tensors(optimizer).items()}
    middle = [parameter.detach().clone() for parameter in whole]
    walk(whole, optimizer, range(3, 6))
    resumed, again = build()
    with torch.no_grad():
        for parameter, value in zip(resumed, middle, strict=True):
            parameter.copy_(value)
    load_optimizer(again, kept)
    walk(resumed, again, range(3, 6))
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one, other)


def test_an_interrupted_run_resumes_and_ends_with_the_same_bits(tmp_path, monkeypatch):
    config = small(name="muon", epochs=2)
    with monkeypatch.context() as patched:
        stop_at(patched, 5, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", runtime=QUIET)
    assert read_state(tmp_path / "stopped") is not None
    train(config, tmp_path / "stopped", runtime=QUIET)
    train(config, tmp_path / "whole", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_an_unknown_optimizer_is_told_of_muon():
    with pytest.raises(ConfigError, match=r"Did you mean 'muon'.*Known: adamw, sgd, lamb, muon"):
        OptimizerConfig(name="moun")  # pyright: ignore[reportArgumentType]
