"""What every registered method must do, on every kind of backbone. A new method is found by name."""

import functools
from collections.abc import Callable

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from lrformer.core import ConfigError, NotFittedError
from lrformer.heads import Predictive
from lrformer.methods import METHODS, Method, create_method, list_methods
from tests.methods.tiny import (
    NUM_CLASSES,
    TinyConvNet,
    TinyMLP,
    small_method,
    tiny_lrformer,
    tiny_timm,
    tiny_wide_resnet,
)

BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "mlp": TinyMLP,
    "convnet": TinyConvNet,
    "lrformer": tiny_lrformer,
    "wide_resnet": tiny_wide_resnet,
    "timm": tiny_timm,
}
# LRFormer is a statement about the attention: only one of these backbones has it.
CASES = [
    (method, backbone)
    for method in list_methods()
    for backbone in BACKBONES
    if method != "lrformer" or backbone == "lrformer"
]
every_case = pytest.mark.parametrize(("method", "backbone"), CASES)


def batch(size: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(size, 1, 8, 8, generator=generator)
    return x, torch.arange(size) % NUM_CLASSES


def build(method: str, backbone: str) -> Method:
    return small_method(method, BACKBONES[backbone])


def take_steps(model: Method) -> None:
    """Go through the whole life of a method, with one batch to train on."""
    x, y = batch()
    loader = [(x, y)]
    model.train()
    model.prepare(loader)
    for stage in range(model.num_stages):
        model.start_stage(stage)
        optimizer = torch.optim.SGD(model.stage_parameters(), lr=1e-3)
        for _ in range(2):
            model.on_epoch_start()
            optimizer.zero_grad()
            model.loss(x, y).backward()
            optimizer.step()
            model.after_step(x, y)
            model.refresh_posterior()
        model.finish_stage()
    model.fit_posterior([batch(48), batch(12)])


@functools.cache
def trained_state(method: str, backbone: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = build(method, backbone)
    take_steps(model)
    return model.state_dict()


def trained(method: str, backbone: str) -> Method:
    model = build(method, backbone)
    model.load_state_dict(trained_state(method, backbone))
    return model.eval()


def predict(model: Method, x: Tensor, seed: int = 0) -> Predictive:
    return model.predict(x, torch.Generator().manual_seed(seed))


def tensors(predictive: Predictive) -> list[Tensor]:
    parts = (predictive.logits, predictive.variance, predictive.samples, predictive.distances)
    return [part for part in parts if part is not None]


def test_the_ten_systems_of_the_paper_are_registered_in_its_order() -> None:
    expected = "deterministic mc_dropout mcd_gp dnn_sn dnn_gp duq due sngp deep_ensemble lrformer"
    assert list_methods() == expected.split()


@every_case
def test_predictions_are_finite_and_probabilities_sum_to_one(method: str, backbone: str) -> None:
    model = trained(method, backbone)
    predictive = predict(model, batch()[0])
    assert all(part.isfinite().all() for part in tensors(predictive))
    assert predictive.logits.shape == (12, NUM_CLASSES)
    assert torch.allclose(predictive.probs.sum(-1), torch.ones(12), atol=1e-5)
    assert predictive.probs.min() >= 0
    assert model.default_score in predictive.scores
    assert model.scores == predictive.scores
    for score in predictive.scores:
        assert predictive.uncertainty(score).isfinite().all(), score
    assert not any(part.requires_grad for part in tensors(predictive))


@every_case
def test_an_input_is_predicted_the_same_alone_and_in_a_batch(method: str, backbone: str) -> None:
    model = trained(method, backbone)
    x, _ = batch()
    together, alone = predict(model, x), predict(model, x[5:6])
    assert torch.allclose(together.probs[5:6], alone.probs, atol=1e-5)
    for score in together.scores:
        assert torch.allclose(
            together.uncertainty(score)[5:6], alone.uncertainty(score), atol=1e-4, rtol=1e-4
        ), score


@every_case
def test_a_seed_repeats_a_prediction_and_the_global_generator_is_left_alone(
    method: str, backbone: str
) -> None:
    model = trained(method, backbone)
    x, _ = batch()
    torch.manual_seed(1)
    first = predict(model, x)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = predict(model, x)
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    for before, after in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(before, after)


@every_case
def test_seeded_training_repeats(method: str, backbone: str) -> None:
    if backbone not in ("mlp", "lrformer"):
        pytest.skip("one kind of backbone with and one without attention is enough")
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        model = build(method, backbone)
        take_steps(model)
        states.append(model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


@every_case
def test_saving_and_loading_keeps_every_bit(method: str, backbone: str) -> None:
    model = trained(method, backbone)
    saved = safetensors.torch.save({k: v.contiguous() for k, v in model.state_dict().items()})
    torch.manual_seed(99)
    loaded = build(method, backbone)
    loaded.load_state_dict(safetensors.torch.load(saved))
    x, _ = batch()
    first, second = predict(model, x), predict(loaded.eval(), x)
    for before, after in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(before, after)


@every_case
def test_every_parameter_gets_a_gradient(method: str, backbone: str) -> None:
    model = build(method, backbone).train()
    x, y = batch()
    model.prepare([(x, y)])
    model.start_stage(0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = list(model.stage_parameters())
    assert parameters
    for _ in range(3):  # what is multiplied by zero at the start moves after a step
        model.loss(x, y).backward()
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None, names[id(parameter)]
                parameter.sub_(0.1 * parameter.grad)
    for parameter in parameters:
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all(), names[id(parameter)]
        assert parameter.grad.abs().max() > 0, names[id(parameter)]


@every_case
def test_it_trains_and_predicts_under_bfloat16_autocast(method: str, backbone: str) -> None:
    model = build(method, backbone).train()
    x, _ = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        take_steps(model)
        predictive = predict(model.eval(), x)
    assert all(part.dtype == torch.float32 for part in tensors(predictive))
    assert all(part.isfinite().all() for part in tensors(predictive))
    assert torch.allclose(predictive.probs.sum(-1), torch.ones(12), atol=1e-5)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@every_case
def test_an_unfitted_posterior_is_refused(method: str, backbone: str) -> None:
    model = build(method, backbone).eval()
    x, _ = batch()
    if not model.needs_posterior:
        assert predict(model, x).logits.isfinite().all()
        return
    with pytest.raises(NotFittedError):
        predict(model, x)
    assert not trained(method, backbone).needs_posterior


@every_case
def test_predicting_leaves_the_mode_and_the_weights_as_they_were(
    method: str, backbone: str
) -> None:
    model = trained(method, backbone)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for is_training in (True, False):
        model.train(is_training)
        first = predict(model, batch()[0])
        assert all(module.training == is_training for module in model.modules())
        for left, right in zip(tensors(first), tensors(predict(model, batch()[0])), strict=True):
            assert torch.equal(left, right)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@every_case
def test_probabilities_as_targets_are_accepted(method: str, backbone: str) -> None:
    if backbone not in ("mlp", "lrformer"):
        pytest.skip("the targets never reach the backbone")
    model = build(method, backbone).train()
    x, y = batch()
    model.prepare([(x, y)])
    model.start_stage(0)
    one_hot = nn.functional.one_hot(y, NUM_CLASSES).float()
    model.loss(x, y)  # what is set at the first call, with random numbers, is set now
    torch.manual_seed(0)
    hard = model.loss(x, y)
    torch.manual_seed(0)
    soft = model.loss(x, one_hot)
    assert soft.item() == pytest.approx(hard.item(), rel=0.05)
    model.after_step(x, one_hot)


@pytest.mark.parametrize("method", list_methods())
def test_an_unknown_setting_gets_a_hint(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"method '{method}' has no setting 'colour'"):
        small_method(method, colour="red")
    assert METHODS[method].config_class.__doc__


def test_a_backbone_that_is_built_already_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a function that builds one"):
        create_method("deterministic", torch.nn.Linear(2, 2), num_classes=2)
