import pytest
import torch
from torch import nn

from lrformer.core import ConfigError, NotFittedError
from lrformer.methods import deep_ensemble
from lrformer.models import create_model
from tests.methods.tiny import TinyConvNet, TinyMLP, digits, fit, small_method, tiny_lrformer


def tiny_certified():
    return create_model("certified_digits", num_classes=0, depth=1)


def finished(backbone, **settings):
    ensemble = small_method("deep_ensemble", backbone, num_members=3, **settings)
    for stage in range(3):
        ensemble.start_stage(stage)
        ensemble.finish_stage()
    return ensemble.eval()


@pytest.mark.parametrize("backbone", [TinyMLP, TinyConvNet, tiny_lrformer, tiny_certified])
@pytest.mark.parametrize("max_stacked_bytes", [2**30, 1])
def test_the_vectorized_pass_equals_the_loop_over_members(backbone, max_stacked_bytes) -> None:
    stacked = finished(backbone, vectorize=True, max_stacked_bytes=max_stacked_bytes)
    looped = finished(backbone, vectorize=False)
    looped.load_state_dict(stacked.state_dict())
    x = digits()[1].tensors[0][:6]
    expected = torch.stack([member(x) for member in looped.members])
    for ensemble in (stacked, looped, stacked):  # the second time with what was kept
        samples = ensemble.predict(x).samples
        assert samples is not None
        assert torch.allclose(samples, expected, atol=1e-5)
    with torch.no_grad():
        alone = torch.stack([member(x) for member in stacked.members])
    assert torch.allclose(alone, expected, atol=1e-5)


def test_the_stacked_weights_follow_the_members() -> None:
    ensemble = finished(TinyMLP, vectorize=True)
    x = torch.randn(4, 1, 8, 8)
    before = ensemble.predict(x).logits
    with torch.no_grad():
        ensemble.members[1][1].bias.add_(3.0)
    assert torch.allclose(ensemble.predict(x).logits, before + 1.0, atol=1e-5)


def test_weights_that_are_put_in_the_place_of_others_are_followed() -> None:
    ensemble = finished(TinyMLP, vectorize=True)
    x = torch.randn(4, 1, 8, 8)
    before = ensemble.predict(x).logits
    bias = ensemble.members[1][1].bias
    bias.data = bias.detach() + 3.0  # as a move to another device does, without a new version
    assert torch.allclose(ensemble.predict(x).logits, before + 1.0, atol=1e-5)


@pytest.mark.parametrize("max_stacked_bytes", [2**30, 1])
def test_what_does_not_change_is_stacked_once(monkeypatch, max_stacked_bytes) -> None:
    stack, stacked = deep_ensemble._stacked_state, []

    def count(members):
        stacked.append(len(members))
        return stack(members)

    monkeypatch.setattr(deep_ensemble, "_stacked_state", count)
    ensemble = finished(TinyMLP, vectorize=True, max_stacked_bytes=max_stacked_bytes)
    for _ in range(3):
        ensemble.predict(torch.randn(4, 1, 8, 8))
    assert stacked == ([3] if max_stacked_bytes > 1 else [1, 1, 1])


@torch.no_grad()
def test_the_stacked_weights_follow_the_statistics_of_batch_norms() -> None:
    ensemble = finished(TinyConvNet, vectorize=True)
    x = torch.randn(4, 1, 8, 8)
    before = ensemble.predict(x).logits
    norms = [m for m in ensemble.members[2].modules() if isinstance(m, nn.BatchNorm2d)]
    norms[0].running_mean.add_(1.0)
    expected = torch.stack([member(x) for member in ensemble.members]).mean(0)
    assert torch.allclose(ensemble.predict(x).logits, expected, atol=1e-5)
    assert not torch.allclose(before, expected, atol=1e-3)


def test_after_a_prediction_in_inference_mode_the_input_still_has_a_gradient() -> None:
    ensemble = finished(TinyMLP, vectorize=True)
    x = torch.randn(4, 1, 8, 8)
    with torch.inference_mode():
        ensemble.predict(x)

    def gradient(logits):
        inputs = x.clone().requires_grad_()
        return torch.autograd.grad(logits(inputs).square().sum(), inputs)[0]

    expected = gradient(lambda z: sum(member(z) for member in ensemble.members) / 3)
    assert torch.allclose(gradient(ensemble), expected, atol=1e-5)


def test_an_ensemble_that_was_built_in_inference_mode_predicts() -> None:
    x = torch.randn(4, 1, 8, 8)
    with torch.inference_mode():
        ensemble = finished(TinyMLP, vectorize=True)
        for _ in range(2):
            expected = sum(member(x) for member in ensemble.members) / 3
            assert torch.allclose(ensemble.predict(x).logits, expected, atol=1e-5)
            ensemble.members[1][1].bias.add_(3.0)  # nothing tells of it
        expected = ensemble.predict(x).logits
    assert torch.allclose(ensemble.predict(x).logits, expected, atol=1e-5)


def test_members_may_be_frozen_one_by_one() -> None:
    ensemble = finished(TinyMLP, vectorize=True)
    x = torch.randn(4, 1, 8, 8)
    expected = ensemble.predict(x).logits
    ensemble.members[0].requires_grad_(False)
    ensemble.train().eval()
    assert torch.equal(ensemble.predict(x).logits, expected)


def test_members_start_apart_and_shared_weights_are_refused() -> None:
    ensemble = finished(TinyMLP)
    first, second = (member[0].embed.weight for member in ensemble.members[:2])
    assert not torch.equal(first, second)
    shared = TinyMLP()
    with pytest.raises(ConfigError, match="same weights twice"):
        small_method("deep_ensemble", lambda: shared)


def test_training_goes_on_after_the_last_finished_member() -> None:
    train, _, _ = digits()
    torch.manual_seed(0)
    ensemble = small_method("deep_ensemble", num_members=2)
    ensemble.start_stage(0)
    optimizer = torch.optim.SGD(ensemble.stage_parameters(), lr=0.1)
    x, y = train.tensors
    untouched = {name: p.clone() for name, p in ensemble.members[1].named_parameters()}
    ensemble.loss(x[:50], y[:50]).backward()
    optimizer.step()
    ensemble.finish_stage()
    assert all(torch.equal(p, untouched[n]) for n, p in ensemble.members[1].named_parameters())
    with pytest.raises(NotFittedError, match="1 of 2 members are trained"):
        ensemble.predict(x[:2])

    resumed = small_method("deep_ensemble", num_members=2)
    resumed.load_state_dict(ensemble.state_dict())
    assert resumed.stage == 1
    with pytest.raises(ConfigError, match=r"go on with start_stage\(1\)"):
        resumed.start_stage(0)
    kept = {name: p.clone() for name, p in resumed.members[0].named_parameters()}
    fit(resumed, train, epochs=1)
    assert not resumed.needs_posterior
    assert all(torch.equal(p, kept[n]) for n, p in resumed.members[0].named_parameters())
    assert not torch.equal(resumed.members[1][0].embed.weight, untouched["0.embed.weight"])


def test_a_stage_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"stage \(5\) must be at least 0 and below 2"):
        small_method("deep_ensemble").start_stage(5)
    with pytest.raises(ConfigError, match=r"num_members \(1\)"):
        small_method("deep_ensemble", num_members=1)


def test_parameters_get_the_same_gradients_vectorized_or_not() -> None:
    x = digits()[1].tensors[0][:6]
    gradients = []
    for vectorize in (True, False):
        torch.manual_seed(0)
        ensemble = finished(TinyMLP, vectorize=vectorize)
        ensemble(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in ensemble.parameters()])
    for stacked, looped in zip(*gradients, strict=True):
        assert stacked is not None
        assert torch.allclose(stacked, looped)
