"""Every method learns the digits 0 to 4 on one core, and is less sure of 5 to 9."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from lrformer.methods import list_methods
from tests.methods.tiny import digits, fit, small_method

# What converges more slowly than a multilayer perceptron under cross-entropy.
TRAINING = {
    "due": {"epochs": 12, "learning_rate": 1e-2},
    "lrformer": {"epochs": 12, "learning_rate": 1e-2},
}


@pytest.mark.parametrize("name", list_methods())
def test_it_learns_known_digits_and_doubts_unknown_ones(name: str) -> None:
    train, test, unknown = digits()
    x, y = test.tensors
    method = small_method(name)
    fit(method, train, **TRAINING.get(name, {"epochs": 6, "learning_rate": 3e-3}))
    known = method.predict(x, torch.Generator().manual_seed(0))
    novel = method.predict(unknown, torch.Generator().manual_seed(0))
    accuracy = (known.probs.argmax(-1) == y).float().mean().item()
    assert accuracy > 0.8  # chance is 0.2

    score = method.default_score
    scores = torch.cat([known.uncertainty(score), novel.uncertainty(score)])
    is_novel = torch.cat([torch.zeros(len(x)), torch.ones(len(unknown))])
    assert roc_auc_score(is_novel, scores) > 0.65  # chance is 0.5
