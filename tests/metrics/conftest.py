"""Random predictions with known seeds, as the metric tests need them."""

import pytest
import torch
from torch import Tensor


def _random_predictions(num_samples: int, num_classes: int, *, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (num_samples,), generator=generator)
    logits = torch.randn(num_samples, num_classes, dtype=torch.float64, generator=generator)
    logits[torch.arange(num_samples), labels] += 1.0
    return (1.5 * logits).softmax(dim=1), labels


def _random_scores(
    num_id: int, num_ood: int, *, seed: int = 0, decimals: int = 15
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inside = torch.randn(num_id, dtype=torch.float64, generator=generator)
    outside = torch.randn(num_ood, dtype=torch.float64, generator=generator) + 0.8
    return inside.round(decimals=decimals), outside.round(decimals=decimals)


@pytest.fixture
def random_predictions():
    """Return a maker of float64 probabilities and labels that agree more often than chance."""
    return _random_predictions


@pytest.fixture
def random_scores():
    """Return a maker of scores of two overlapping populations; few decimals make ties."""
    return _random_scores
