import pytest
import torch
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.heads import DUQHead
from tests.tolerance import assert_close


def head(**settings) -> DUQHead:
    generator = torch.Generator().manual_seed(0)
    return DUQHead(5, 3, **{"centroid_dim": 4, "generator": generator, **settings}).double()


def kernel_by_loops(duq: DUQHead, x: Tensor) -> Tensor:
    """K_c(x) = exp(-mean_m (W_c x - e_c)_m^2 / (2 sigma^2)), one entry after the other."""
    kernel = torch.empty(len(x), 3, dtype=torch.float64)
    for i, row in enumerate(x):
        for c in range(3):
            difference = duq.weight[c].detach() @ row - duq.centroids[c]
            kernel[i, c] = torch.exp(-difference.square().mean() / (2 * duq.length_scale**2))
    return kernel


def test_the_kernel_equals_its_definition() -> None:
    duq = head(length_scale=0.7)
    x = torch.randn(6, 5, dtype=torch.float64)
    assert_close(duq(x).exp(), kernel_by_loops(duq, x), 1e-12)


def test_centroids_follow_the_references_moving_average() -> None:
    duq = head(gamma=0.9)
    initial = duq.centroids.clone()
    counts = torch.full((3,), 8 / 3, dtype=torch.float64)  # a batch over its classes
    sums = initial * counts.unsqueeze(-1)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
        y = torch.randint(3, (8,), generator=generator)
        for c in range(3):
            embedded = x[y == c] @ duq.weight[c].detach().T
            counts[c] = 0.9 * counts[c] + 0.1 * len(embedded)
            sums[c] = 0.9 * sums[c] + 0.1 * embedded.sum(0)
        duq.update_centroids(x, y)
    assert_close(duq.centroids, sums / counts.unsqueeze(-1), 1e-6)
    assert (duq.centroids - initial).abs().max() > 0.01


def test_uncertainty_is_the_distance_to_the_nearest_centroid_and_never_saturates() -> None:
    duq = head(length_scale=0.1)
    x = torch.randn(4, 5, dtype=torch.float64)
    predictive = duq.predict(x)
    assert_close(
        predictive.uncertainty("kernel_distance"), -kernel_by_loops(duq, x).amax(-1).log(), 1e-6
    )
    nearer = duq.predict(100 * x).uncertainty("kernel_distance")
    farther = duq.predict(200 * x).uncertainty("kernel_distance")
    assert (farther > nearer).all()
    assert_close(predictive.probs, torch.softmax(kernel_by_loops(duq, x).log(), -1), 1e-9)


def test_initial_weights_have_the_references_scale() -> None:
    duq = DUQHead(200, 10, centroid_dim=64)
    assert duq.weight.std().item() == pytest.approx((2 / 2000) ** 0.5, rel=0.02)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"length_scale \(0.0\)"):
        head(length_scale=0.0)
    with pytest.raises(ConfigError, match=r"gamma \(1.0\)"):
        head(gamma=1.0)


def test_centroids_move_in_a_model_of_16_bits() -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 0, 0, 0, 1, 1])
    exact = DUQHead(4, 3, centroid_dim=5, generator=torch.Generator().manual_seed(1))
    narrow = DUQHead(4, 3, centroid_dim=5, generator=torch.Generator().manual_seed(1)).bfloat16()
    for _ in range(300):
        exact.update_centroids(x, y)
        narrow.update_centroids(x.bfloat16(), y)
    assert_close(narrow.counts, exact.counts, 1e-3)
    assert_close(narrow.centroids, exact.centroids, 0.02)


def test_a_head_that_was_wider_for_a_while_comes_back() -> None:
    duq = head().float()
    assert {value.dtype for value in duq.state_dict().values()} == {torch.float32}
