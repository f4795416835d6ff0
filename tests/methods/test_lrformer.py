"""Tests of what LRFormer's own settings do."""

import pytest
import torch
from torch import nn

from lrformer import create_model
from lrformer.core import ConfigError
from lrformer.heads import FlatVarianceWarning
from lrformer.methods import create_method
from lrformer.models.spectral import spectral_norms

BOUND = 0.2


def make(**settings):
    torch.manual_seed(0)
    return create_method(
        "lrformer", lambda: create_model("lrformer_digits", num_classes=0), 10, **settings
    )


def norms(method: nn.Module) -> dict[str, float]:
    return {
        name: torch.linalg.matrix_norm(layer.weight, 2).item()
        for name, layer in method.backbone.named_modules()
        if isinstance(layer, nn.Linear)
    }


def test_a_spectral_bound_holds_every_layer_but_queries_keys_and_values() -> None:
    free, bounded = norms(make()), norms(make(spectral_bound=BOUND))
    inside = [name for name in free if not name.endswith("qkv")]
    assert len(inside) == 3 * 4, "output projection and perceptron of four blocks"
    for name in inside:
        assert free[name] > BOUND
        # Power iteration comes from below, so that the norm may be a little above.
        assert 0.9 * BOUND < bounded[name] < 1.2 * BOUND
    assert all(bounded[name] == free[name] for name in free if name not in inside)


def test_without_a_bound_no_layer_is_touched() -> None:
    assert not list(spectral_norms(make()))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_a_bound_that_is_not_positive_is_refused_by_its_own_name(bound: float) -> None:
    with pytest.raises(
        ConfigError, match=r"spectral_bound \(.*\) must be (positive|a finite number), or"
    ):
        make(spectral_bound=bound)


def test_a_process_that_is_fitted_after_training_has_nothing_to_refresh_between_epochs() -> None:
    method = make(head="fitted")
    loader = [(torch.randn(8, 1, 8, 8), torch.arange(8))]
    method.train()
    method.on_epoch_start()
    method.loss(*loader[0]).backward()
    method.refresh_posterior()
    assert method.needs_posterior
    with pytest.warns(FlatVarianceWarning):  # eight inputs of noise
        method.fit_posterior(loader)
    assert not method.needs_posterior
    # Weights that have moved on have no posterior until it is fitted again.
    method.train()
    method.loss(*loader[0]).backward()
    method.refresh_posterior()
    assert method.needs_posterior
