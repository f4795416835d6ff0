"""DUQ's loss and its order of updates; DUE's start from the data."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lrformer.core import ConfigError, NotFittedError
from lrformer.methods.due import kmeans
from lrformer.models import create_model
from tests.methods.tiny import TinyConvNet, TinyMLP, digits, fit, small_method, tiny_lrformer


def test_the_loss_of_duq_is_binary_cross_entropy_plus_a_two_sided_penalty() -> None:
    method = small_method("duq", lambda: TinyMLP(drop_rate=0.0), gradient_penalty=0.75).double()
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    y = torch.arange(6) % 5
    kernel = method(x).exp()
    one_hot = nn.functional.one_hot(y, 5).double()
    binary = -(one_hot * kernel.log() + (1 - one_hot) * (1 - kernel).log()).mean()
    # The gradient of the summed kernels by central differences, one pixel after the other.
    step = 1e-6
    gradient = torch.zeros_like(x)
    with torch.no_grad():
        for i in range(8):
            for j in range(8):
                shift = torch.zeros_like(x)
                shift[:, 0, i, j] = step
                rise = method(x + shift).exp().sum(-1) - method(x - shift).exp().sum(-1)
                gradient[:, 0, i, j] = rise / (2 * step)
    penalty = (gradient.flatten(1).norm(dim=1) - 1).square().mean()
    expected = (binary + 0.75 * penalty).item()
    assert method.loss(x, y).item() == pytest.approx(expected, rel=1e-6)
    without = small_method("duq", gradient_penalty=0.0)
    without.load_state_dict(method.state_dict())
    assert without.double().eval().loss(x, y).item() == pytest.approx(binary.item(), rel=1e-6)


def test_the_penalty_reaches_the_weights_through_fused_attention() -> None:
    method = small_method("duq", tiny_lrformer)
    x = torch.randn(4, 1, 8, 8)
    method.loss(x, torch.arange(4)).backward()
    gradient = method.backbone.blocks[0].attn.qkv.weight.grad
    assert gradient is not None
    assert gradient.abs().max() > 0


def test_centroids_move_after_the_step_and_in_evaluation_mode() -> None:
    method = small_method("duq", TinyConvNet).train()
    x, y = digits()[0][:20]
    before = method.head.centroids.clone()
    method.loss(x, y)
    assert torch.equal(method.head.centroids, before)
    running = method.backbone.bn.running_mean.clone()
    method.after_step(x, y)
    assert not torch.equal(method.head.centroids, before)
    assert torch.equal(method.backbone.bn.running_mean, running)
    assert method.training


def test_due_starts_from_centers_of_features_and_their_mean_distance() -> None:
    method = small_method("due", num_init_inputs=100, spectral_bound=None)
    method.eval()  # so that features can be computed again
    train = digits()[0]
    loader = torch.utils.data.DataLoader(train, batch_size=40)
    method.prepare(loader)
    with torch.no_grad():
        features = method.features(train.tensors[0][:100])
    strategy = method.head.gp.variational_strategy.base_variational_strategy
    centers = kmeans(features, 5, seed=0)
    assert torch.allclose(strategy.inducing_points, centers, atol=1e-5)
    lengths = method.head.gp.covar_module.base_kernel.lengthscale
    expected = torch.nn.functional.pdist(features).mean()
    assert torch.allclose(lengths, expected.expand_as(lengths), rtol=1e-4)
    assert int(method.head.num_data) == 600


def test_due_believes_what_it_is_told_of_the_size_of_the_training_set() -> None:
    train = digits()[0]
    for settings, expected in (({}, 600), ({"num_data": 50_000}, 50_000)):
        method = small_method("due", TinyMLP, spectral_bound=None, **settings)
        method.prepare(DataLoader(train, 64))
        assert int(method.head.num_data) == expected


def test_a_transformer_under_due_collapses_from_the_prior_and_learns_from_a_draw() -> None:
    train, test, _ = digits()
    x, y = test.tensors

    def spread_and_accuracy(start: str) -> tuple[float, float]:
        torch.manual_seed(0)
        method = small_method(
            "due",
            lambda: tiny_lrformer(attention="dot_product", patch_size=4, proj_drop_rate=0.0),
            initial_posterior=start,
        )

        def distance() -> float:
            with torch.no_grad():
                return torch.nn.functional.pdist(method.features(x)).mean().item()

        before = distance()
        fit(method, train, epochs=4, learning_rate=2e-3)
        guess = method.predict(x, torch.Generator().manual_seed(0)).probs.argmax(-1)
        return distance() / before, (guess == y).float().mean().item()

    spread, accuracy = spread_and_accuracy("prior")
    assert spread < 0.75
    assert accuracy < 0.3  # chance is 0.2
    spread, accuracy = spread_and_accuracy("draw")
    assert spread > 1.1
    assert accuracy > 0.5


@pytest.mark.parametrize(
    ("backbone", "start", "is_draw"),
    [
        (lambda: tiny_lrformer(attention="dot_product"), None, True),
        (TinyMLP, None, True),
        (TinyConvNet, None, False),
        (
            lambda: create_model("lrformer_hybrid_32", num_classes=0, depth=1, embed_dim=48),
            None,
            True,
        ),
        (lambda: nn.Sequential(TinyConvNet(), nn.GroupNorm(2, 16)), None, True),
        (lambda: nn.Sequential(TinyConvNet(), nn.RMSNorm(16)), None, True),
        (TinyConvNet, "draw", True),
        (TinyMLP, "prior", False),
    ],
)
def test_the_start_of_the_posterior_follows_the_last_normalization(
    backbone, start, is_draw
) -> None:
    def with_features() -> nn.Module:
        made = backbone()
        made.num_features = getattr(made, "num_features", 16)
        return made

    method = small_method("due", with_features, initial_posterior=start, spectral_bound=None)
    assert method._starts_at_a_draw == is_draw


def test_a_draw_is_what_prepare_puts_into_the_head() -> None:
    train, _, _ = digits()
    means, deviations = [], []
    for settings in ({"initial_posterior": "prior"}, {}, {}, {"seed": 1}):
        torch.manual_seed(0)
        method = small_method("due", TinyMLP, spectral_bound=None, **settings)
        method.prepare(DataLoader(train, 64))
        strategy = method.head.gp.variational_strategy.base_variational_strategy
        means.append(strategy._variational_distribution.variational_mean.sum().item())
        variance = method.head.train().marginals(strategy.inducing_points.detach())[1]
        deviations.append(variance.sqrt().mean().item())
    assert deviations[1] < 0.2 * deviations[0]
    assert means[1] == means[2] != means[3]


def test_another_start_of_the_posterior_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"initial_posterior \('zero'\) must be 'prior' or 'draw'"
    ):
        small_method("due", initial_posterior="zero")


def test_kmeans_finds_separated_clusters() -> None:
    centers = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = torch.cat([center + 0.1 * torch.randn(30, 2) for center in centers])
    found = kmeans(points, 3, seed=0)
    assert torch.cdist(centers, found).amin(1).max() < 0.1
    with pytest.raises(ConfigError, match=r"num_inducing \(5\) is larger than the 2 inputs"):
        kmeans(points[:2], 5, seed=0)


def test_due_refuses_to_train_before_it_has_seen_data() -> None:
    method = small_method("due")
    with pytest.raises(NotFittedError, match="prepare"):
        method.loss(torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))


def test_calibrated_gaussian_processes_are_prepared_with_training_features() -> None:
    method = small_method("sngp", feature_scale="calibrate")
    x, y = digits()[0][:100]
    with pytest.raises(NotFittedError, match="calibrate"):
        method.loss(x, y)
    method.prepare([(x, y)])
    assert method.loss(x, y).isfinite()


def test_an_epoch_of_training_sums_each_example_once_and_starts_afresh() -> None:
    method = small_method("dnn_gp", lambda: TinyMLP(drop_rate=0.0)).train()
    x, y = digits()[0][:30]
    for _ in range(2):
        method.on_epoch_start()
        method.loss(x[:20], y[:20])
        method.loss(x[20:], y[20:])
    method.refresh_posterior()
    summed = method.head.posterior.precision.clone()
    method.fit_posterior([x])
    assert torch.allclose(method.head.posterior.precision, summed, rtol=1e-5)


def test_lrformer_needs_lrsa_and_takes_either_head() -> None:
    with pytest.raises(ConfigError, match="has no LRSA attention"):
        small_method("lrformer", TinyMLP)
    with pytest.raises(ConfigError, match=r"head \('mlp'\)"):
        small_method("lrformer", head="mlp")
    method = small_method("lrformer", head="linear").eval()
    assert not method.needs_posterior
    assert method.fit_posterior([]) is method
    assert method.predict(torch.randn(2, 1, 8, 8)).variance is None


@pytest.mark.parametrize("gradient_penalty", [0.0, 0.5])
def test_a_duq_that_diverged_has_a_loss_that_says_so(gradient_penalty) -> None:
    method = small_method("duq", TinyMLP, gradient_penalty=gradient_penalty)
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    assert method.loss(x, y).isfinite()
    with torch.no_grad():
        next(method.parameters()).fill_(torch.nan)
    assert method.loss(x, y).isnan()
