"""Schedule, optimizers, criterion: each against a slow reference."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from lrformer.core import ConfigError
from lrformer.methods import create_method
from lrformer.models import create_model
from lrformer.training import OptimizerConfig, TrainConfig
from lrformer.training.config import default_batch_size, default_lr
from lrformer.training.criterion import Criterion, balanced_weights
from lrformer.training.lamb import LAMB
from lrformer.training.muon import Muon
from lrformer.training.optimizers import build_optimizer, parameter_groups
from lrformer.training.schedule import learning_rate
from lrformer.training.state import load_optimizer, optimizer_tensors
from tests.tolerance import TOLERANCE, assert_close

CPU = torch.device("cpu")


def test_the_rate_rises_linearly_and_falls_along_half_a_cosine():
    config = OptimizerConfig(lr=2.0, final_lr_ratio=0.1)
    rates = [
        learning_rate(step, num_steps=100, warmup_steps=10, config=config) for step in range(101)
    ]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    assert rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rates[100] == pytest.approx(0.2)
    assert all(before >= after for before, after in pairwise(rates[9:]))


@pytest.mark.parametrize("schedule", ["cosine", "steps"])
def test_without_warm_up_the_first_rate_is_the_peak(schedule):
    config = OptimizerConfig(lr=0.5, schedule=schedule)
    assert learning_rate(0, num_steps=10, warmup_steps=0, config=config) == 0.5


def test_the_rate_rises_linearly_and_falls_in_steps_at_shares_of_the_epochs():
    config = OptimizerConfig(lr=2.0, schedule="steps", steps_at=(0.3, 0.6, 0.8), step_factor=0.2)
    rates = [
        learning_rate(step, num_steps=250, warmup_steps=10, config=config) for step in range(250)
    ]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    expected = 65 * [2.0] + 75 * [0.4] + 50 * [0.08] + 50 * [0.016]
    assert rates[10:] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"schedule": "step"}, "unknown schedule 'step'. Did you mean 'steps'"),
        ({"steps_at": (0.6, 0.3)}, "steps_at .* must be rising"),
        ({"steps_at": (0.5, 1.0)}, "steps_at .* between 0 and 1"),
        (
            {"schedule": "steps", "final_lr_ratio": 0.1},
            "final_lr_ratio .0.1. is where a cosine ends",
        ),
        ({"step_factor": 1.0}, "step_factor .1.0. must lie between 0 and 1"),
        ({"nesterov": True}, "nesterov is a way of SGD with momentum; the optimizer is 'adamw'"),
        ({"name": "sgd", "momentum": 0.0, "nesterov": True}, "momentum 0.0"),
    ],
)
def test_wrong_settings_of_an_optimizer_are_named(wrong, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**wrong)


def test_nesterovs_momentum_looks_ahead_and_the_penalty_is_part_of_the_gradient():
    config = OptimizerConfig(name="sgd", lr=0.1, weight_decay=0.5, momentum=0.9, nesterov=True)
    weight = nn.Parameter(torch.tensor([3.0]))
    group = [{"params": [weight], "weight_decay": config.weight_decay}]
    optimizer = build_optimizer(config, group, CPU)
    value, velocity = 3.0, 0.0
    for gradient in (1.0, -2.0, 0.5):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        whole = gradient + 0.5 * value
        velocity = 0.9 * velocity + whole
        value -= 0.1 * (whole + 0.9 * velocity)
    assert weight.item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(("epochs", "expected"), [(100, 5.0), (20, 2.0), (1, 0.1)])
def test_warm_up_is_five_epochs_or_a_tenth(epochs, expected):
    config = TrainConfig(data="digits", epochs=epochs)
    assert config.warmup_epochs == pytest.approx(expected)


@pytest.mark.parametrize(
    ("num_samples", "expected"),
    [(1, 1), (5, 4), (8, 8), (300, 8), (511, 8), (512, 16), (1295, 32), (4095, 64), (4096, 128), (1281167, 128)],
)  # fmt: skip
def test_a_batch_is_128_or_gives_a_small_set_32_steps(num_samples, expected):
    assert default_batch_size(num_samples) == expected


def test_only_matrices_are_decayed():
    def backbone() -> nn.Module:
        return create_model("lrformer_tiny_patch4_32", num_classes=0, depth=1, learnable_alpha=True)

    method = create_method("deterministic", backbone, 10)
    groups = parameter_groups(method, method.stage_parameters(), OptimizerConfig())
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    decayed, kept = ({names[id(p)] for p in group["params"]} for group in groups)
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
    assert decayed | kept == set(names.values())
    assert not decayed & kept
    assert {"backbone.pos_embed", "backbone.cls_token", "backbone.blocks.0.norm1.weight"} <= kept
    assert "backbone.blocks.0.attn.log_alpha_factor" in kept
    assert "head.bias" in kept
    assert {"backbone.blocks.0.attn.qkv.weight", "head.weight"} <= decayed
    assert "backbone.tokenizer.proj.weight" in decayed


def test_norms_and_biases_are_decayed_where_that_is_asked_for_and_embeddings_never():
    def backbone() -> nn.Module:
        return create_model("lrformer_tiny_patch4_32", num_classes=0, depth=1, learnable_alpha=True)

    method = create_method("deterministic", backbone, 10)
    config = OptimizerConfig(decays_vectors=True)
    groups = parameter_groups(method, method.stage_parameters(), config)
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    _, kept = ({names[id(p)] for p in group["params"]} for group in groups)
    assert kept == {
        "backbone.pos_embed",
        "backbone.cls_token",
        "backbone.blocks.0.attn.log_alpha_factor",
    }


def test_an_ensemble_decays_only_the_member_in_training():
    def backbone() -> nn.Module:
        return create_model("lrformer_digits", num_classes=0, depth=1)

    method = create_method("deep_ensemble", backbone, 3, num_members=2)
    method.start_stage(0)
    groups = parameter_groups(method, method.stage_parameters(), OptimizerConfig())
    chosen = {id(parameter) for group in groups for parameter in group["params"]}
    assert chosen == {id(parameter) for parameter in method.get_submodule("members.0").parameters()}


def test_lamb_is_timms():
    from timm.optim import Lamb

    torch.manual_seed(1)
    start = [torch.randn(4, 3), torch.zeros(4), torch.randn(2, 4)]
    ours, theirs = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))

    def groups(parameters: list[nn.Parameter]) -> list[dict]:
        matrices = [p for p in parameters if p.ndim > 1]
        vectors = [p for p in parameters if p.ndim < 2]
        return [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
        ]

    mine = LAMB(groups(ours), lr=0.02, betas=(0.9, 0.99), eps=1e-6)
    reference = Lamb(groups(theirs), lr=0.02, betas=(0.9, 0.99), eps=1e-6, max_grad_norm=None)
    for _ in range(12):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one.detach(), other.detach(), TOLERANCE[torch.float32])


def test_the_first_step_of_lamb_divides_by_the_gradient_and_its_eps():
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([0.1, -1.0, 10.0])
    config = OptimizerConfig(name="lamb", lr=0.5, eps=0.1)
    build_optimizer(config, [{"params": [parameter], "weight_decay": 0.0}], CPU).step()
    expected = -0.5 * torch.tensor([0.1 / 0.2, -1.0 / 1.1, 10.0 / 10.1])
    assert_close(parameter.detach(), expected, TOLERANCE[torch.float32])


def test_the_momentum_of_sgd_is_the_one_that_was_set():
    parameter = nn.Parameter(torch.zeros(()))
    config = OptimizerConfig(name="sgd", lr=1.0, momentum=0.5)
    optimizer = build_optimizer(config, [{"params": [parameter], "weight_decay": 0.0}], CPU)
    for _ in range(3):
        parameter.grad = torch.ones(())
        optimizer.step()
    # Steps of 1, 1.5 and 1.75.
    assert float(parameter.detach()) == -4.25


@pytest.mark.parametrize("name", ["adamw", "sgd", "lamb"])
def test_every_optimizer_goes_downhill(name):
    parameter = nn.Parameter(torch.full((3, 3), 2.0))
    config = OptimizerConfig(name=name, lr=0.05)
    optimizer = build_optimizer(config, [{"params": [parameter], "weight_decay": 0.01}], CPU)
    for _ in range(40):
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()
    assert float(parameter.detach().square().sum()) < 0.5 * 36


@pytest.mark.parametrize("optimizer_class", [LAMB, Muon])
def test_a_loaded_count_lies_with_its_weight_where_a_cuda_graph_can_change_it(optimizer_class):
    weight = nn.Parameter(torch.empty(3, device="meta"))
    optimizer = optimizer_class([weight], lr=0.1)
    load_optimizer(optimizer, {"0.step": torch.tensor(7.0), "0.exp_avg": torch.zeros(3)})
    assert optimizer.state[weight]["step"].device == weight.device


@pytest.mark.parametrize("optimizer_class", [LAMB, Muon])
def test_a_rate_that_is_a_tensor_is_the_same_tensor_after_loading(optimizer_class):
    rate, parameter = torch.tensor(0.5), nn.Parameter(torch.ones(3))
    optimizer = optimizer_class([parameter], lr=rate)
    parameter.grad = torch.ones(3)
    optimizer.step()
    load_optimizer(optimizer, optimizer_tensors(optimizer))
    before = parameter.detach().clone()
    # A schedule writes into the tensor that it has known from the start.
    rate.fill_(0.0)
    optimizer.step()
    assert torch.equal(parameter.detach(), before)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("name", ["cross_entropy", "binary_cross_entropy"])
def test_the_criterion_is_the_definition_and_counts_right_answers(name, soft):
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    targets = nn.functional.one_hot(labels, 4).float()
    if soft:
        targets = 0.7 * targets + 0.3 * targets.roll(1, 0)
    criterion = Criterion(name=name, label_smoothing=0.2, device=CPU)
    actual = criterion(logits, targets if soft else labels)
    smooth = (0.8 * targets + 0.2 / 4).double()
    wide = logits.double()
    if name == "cross_entropy":
        expected = -(smooth * wide.log_softmax(-1)).sum(-1).mean()
    else:
        probs = wide.sigmoid()
        expected = -(smooth * probs.log() + (1 - smooth) * (1 - probs).log()).mean()
    assert_close(actual, expected, TOLERANCE[torch.float32])
    right = int((logits.argmax(-1) == targets.argmax(-1)).sum())
    assert criterion.counts.tolist() == [right, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": OptimizerConfig(warmup_epochs=3.0), "epochs": 3}, "warmup_epochs"),
        ({"batch_size": 10, "accumulate": 3}, "accumulate"),
        ({"batch_size": 0}, r"batch_size \(0\) must be at least 1"),
        ({"classes": ("cat",)}, r"classes \(cat\) must be at least two"),
        ({"optimizer": "sgd"}, r"optimizer \('sgd'\) must be an OptimizerConfig"),
        ({"augment": "basic"}, r"augment \('basic'\) must be an AugmentConfig"),
        ({"val_fraction": 2.0}, r"val_fraction \(2.0\) must lie strictly between"),
        ({"loss": "cross_entrpy"}, "Did you mean 'cross_entropy'"),
        ({"ema_decay": 1.0}, "ema_decay"),
        ({"epochs": 1.5}, r"epochs \(1.5\) must be a whole number"),
        ({"batch_size": "64"}, r"batch_size \('64'\) must be a whole number, or null"),
        ({"seed": -1}, r"seed \(-1\) must lie in 0"),
        ({"label_smoothing": "x"}, r"label_smoothing \('x'\) must be a number"),
        ({"true_positive_rate": 0.0}, "true_positive_rate"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(data="digits", **changes)


def test_a_rate_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match=r"lr \('fast'\) must be a number"):
        OptimizerConfig(lr="fast")  # pyright: ignore[reportArgumentType]


def test_a_wrong_optimizer_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean 'adamw'"):
        OptimizerConfig(name="adamm")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "lr", "weight_decay"),
    [("adamw", 1e-3, 0.05), ("sgd", 1e-2, 5e-4), ("lamb", 1e-3, 0.05), ("muon", 3e-3, 0.05)],
)
def test_an_optimizer_has_a_rate_of_its_own_and_trained_weights_a_part_of_it(
    name, lr, weight_decay
):
    optimizer = OptimizerConfig(name=name)
    assert optimizer.decay == weight_decay
    assert OptimizerConfig(name=name, weight_decay=0.1).decay == 0.1
    config = TrainConfig(data="digits", optimizer=optimizer)
    assert default_lr(config) == lr
    trained = dataclasses.replace(config, start="vit_tiny_patch16_224")
    assert default_lr(trained) == pytest.approx(0.3 * lr)
    assert default_lr(dataclasses.replace(trained, pretrained=False)) == lr


@pytest.mark.parametrize("name", ["cross_entropy", "binary_cross_entropy"])
def test_balanced_weights_let_every_class_count_alike(name):
    counts = np.array([6, 3, 1, 0])
    weights = balanced_weights(counts)
    assert weights.tolist() == pytest.approx([10 / 18, 10 / 9, 10 / 3, 0])
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    logits = torch.randn(10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = {"name": name, "label_smoothing": 0.1, "device": torch.device("cpu")}
    plain, balanced = Criterion(**settings), Criterion(class_weights=weights, **settings)
    by_class = torch.stack([plain(logits[labels == k], labels[labels == k]) for k in range(3)])
    assert_close(balanced(logits, labels), by_class.mean(), 1e-6)
    soft = nn.functional.one_hot(labels, 4).float()
    assert_close(balanced(logits, soft), balanced(logits, labels), 1e-6)
    mixed = 0.5 * soft[:1] + 0.5 * soft[-1:]
    single = plain(logits[:1], mixed)
    assert_close(balanced(logits[:1], mixed), single * (weights[0] + weights[2]) / 2, 1e-6)
    # Pieces of a batch add up to it.
    pieces = torch.stack([balanced(logits[:5], labels[:5]), balanced(logits[5:], labels[5:])])
    assert_close(pieces.mean(), balanced(logits, labels), 1e-6)
