import pytest
import torch
from torch import nn

from lrformer.core import ConfigError
from lrformer.methods.dropout import repeat_batch, sampled_dropout
from tests.methods.tiny import TinyConvNet, TinyMLP, digits, fit, small_method


def test_the_samples_of_a_linear_model_have_the_mean_and_variance_of_dropout() -> None:
    """For w . (mask x) / (1 - p) the mean is w . x and the variance p/(1-p) sum (w x)^2."""
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 1, bias=False)).double().eval()
    x = torch.randn(2, 6, dtype=torch.float64)
    num_samples = 20_000
    with torch.no_grad(), sampled_dropout(model, num_samples, torch.Generator().manual_seed(0)):
        samples = model(repeat_batch(x, num_samples)).unflatten(0, (num_samples, 2))[..., 0]
    weighted = x * model[1].weight.detach()
    expected = 0.3 / 0.7 * weighted.square().sum(-1)
    assert torch.allclose(samples.var(0), expected, rtol=0.05)
    error = (samples.mean(0) - weighted.sum(-1)).abs()
    assert (error < 5 * (expected / num_samples).sqrt()).all()


def test_every_sample_is_one_subnetwork_for_the_whole_batch() -> None:
    model = nn.Dropout(0.5).eval()
    x = torch.ones(3, 40)
    with sampled_dropout(model, 4, torch.Generator().manual_seed(0)):
        masks = model(repeat_batch(x, 4)).unflatten(0, (4, 3))
    assert torch.equal(masks, masks[:, :1].expand_as(masks))
    assert len({tuple(mask[0].tolist()) for mask in masks}) == 4
    assert torch.equal(model(x), x)  # after the block dropout is off again


def test_channel_dropout_drops_whole_channels() -> None:
    model = nn.Dropout2d(0.5).eval()
    with sampled_dropout(model, 2, torch.Generator().manual_seed(0)):
        out = model(torch.ones(4, 16, 5, 5))
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(out, out[..., :1, :1].expand_as(out))


def test_only_dropout_is_active_in_a_prediction() -> None:
    method = small_method("mc_dropout", TinyConvNet)
    x = digits()[1].tensors[0][:8]
    running = method.backbone.bn.running_mean.clone()
    method.train().predict(x, torch.Generator().manual_seed(0))
    assert torch.equal(method.backbone.bn.running_mean, running)


def test_chunks_draw_as_many_samples_with_less_memory() -> None:
    x = digits()[1].tensors[0][:4]
    whole = small_method("mc_dropout").eval()
    parts = small_method("mc_dropout", samples_per_forward=3).eval()
    parts.load_state_dict(whole.state_dict())
    seen = []
    parts.backbone.register_forward_hook(lambda _, args, __: seen.append(args[0].shape[0]))
    predictive = parts.predict(x)
    assert seen == [12, 12, 12, 4]
    assert predictive.samples is not None
    assert predictive.samples.shape[0] == 10


def test_the_variance_of_mcd_gp_is_the_mean_over_all_masks_however_they_are_drawn() -> None:
    method = small_method("mcd_gp", lambda: TinyMLP(drop_rate=0.5), samples_per_forward=3)
    x = digits()[0].tensors[0][:60]
    method.fit_posterior([x])
    seen = []
    method.head_drop.register_forward_hook(lambda _, __, features: seen.append(features))
    predictive = method.predict(x[:4], torch.Generator().manual_seed(0))
    assert [len(features) for features in seen] == [12, 12, 12, 4]
    with torch.no_grad():
        variances = method.head.variance(torch.cat(seen)).unflatten(0, (10, 4))
    assert predictive.variance is not None
    assert torch.allclose(predictive.variance, variances.mean(0), rtol=1e-4)
    assert not torch.allclose(predictive.variance, variances[:3].mean(0), rtol=1e-3)


@pytest.mark.parametrize("name", ["mc_dropout", "mcd_gp"])
def test_a_backbone_without_dropout_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no dropout layer with a rate above 0"):
        small_method(name, lambda: TinyMLP(drop_rate=0.0))


@pytest.mark.parametrize("name", ["mc_dropout", "mcd_gp"])
def test_dropout_of_the_features_serves_a_backbone_that_has_none(name: str) -> None:
    method = small_method(name, lambda: TinyMLP(drop_rate=0.0), head_drop_rate=0.5).eval()
    x = digits()[0].tensors[0][:60]
    samples = method.fit_posterior([x]).predict(x).samples
    assert samples is not None
    assert samples.std(0).min() > 0
    with pytest.raises(ConfigError, match=r"head_drop_rate \(1.0\)"):
        small_method(name, head_drop_rate=1.0)


def test_dropout_that_the_forward_pass_does_not_use_is_refused() -> None:
    class Unused(TinyMLP):
        def forward(self, x):
            return self.embed(x.flatten(1))

    method = small_method("mc_dropout", Unused)
    with pytest.raises(ConfigError, match="used none of its dropout layers"):
        method.predict(torch.randn(2, 1, 8, 8))
    with pytest.raises(ConfigError, match="AlphaDropout is not supported"):
        small_method("mc_dropout", _with_alpha_dropout)


def _with_alpha_dropout() -> nn.Module:
    backbone = TinyMLP()
    backbone.drop = nn.AlphaDropout(0.1)
    return backbone


def test_the_posterior_of_mcd_gp_sees_the_features_of_dropout() -> None:
    method = small_method("mcd_gp")
    x = digits()[0].tensors[0][:100]
    method.fit_posterior([x])
    with_dropout = method.head.posterior.precision.clone()
    method.fit_posterior([x])
    assert torch.equal(method.head.posterior.precision, with_dropout)  # seeded
    method.backbone.drop.p = 1e-9
    method.fit_posterior([x])
    assert not torch.allclose(method.head.posterior.precision, with_dropout)


def test_the_posterior_of_mcd_gp_sees_a_mask_for_each_input() -> None:
    method = small_method("mcd_gp", lambda: TinyMLP(drop_rate=0.0), head_drop_rate=0.5).eval()
    x = digits()[0].tensors[0][:1].expand(60, 1, 8, 8)
    with torch.no_grad():
        features = method.posterior_features(x, torch.Generator().manual_seed(0))
        kept = (features / method.backbone(x)).round()  # 0 or 2
    assert torch.equal(kept.unique(), torch.tensor([0.0, 2.0]))
    assert len(kept.unique(dim=0)) == 60


@pytest.mark.parametrize("name", ["mc_dropout", "deep_ensemble", "mcd_gp"])
def test_a_float64_model_predicts_in_float64(name) -> None:
    method = small_method(name)
    fit(method, digits()[0], epochs=1)
    predictive = method.double().predict(digits()[1].tensors[0][:3].double())
    assert predictive.samples is not None
    assert predictive.samples.dtype == predictive.logits.dtype == torch.float64
