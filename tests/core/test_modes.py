"""Evaluation mode for a while, and every part back in its own."""

import pytest
import torch
from torch import nn

from lrformer.core.modes import evaluating
from tests.methods.tiny import TinyConvNet, small_method


def test_a_frozen_part_stays_frozen_and_the_rest_goes_on_training():
    method = small_method("deterministic", TinyConvNet).train()
    frozen = [part for part in method.modules() if isinstance(part, nn.BatchNorm2d)]
    for part in frozen:
        part.eval()
    before = [part.training for part in method.modules()]
    assert sorted(set(before)) == [False, True]
    method.predict(torch.randn(2, 1, 8, 8))
    assert [part.training for part in method.modules()] == before


def test_a_part_in_training_mode_is_evaluated_too_where_the_whole_is_not():
    method = small_method("deterministic", TinyConvNet).eval()
    x = torch.randn(4, 1, 8, 8)
    expected = method.predict(x).logits
    method.backbone.train()
    assert torch.equal(method.predict(x).logits, expected)
    assert method.backbone.training
    assert not method.training


def test_modes_come_back_after_an_error():
    module = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with pytest.raises(RuntimeError), evaluating(module):
        module(torch.randn(2).double() @ torch.randn(3).double())
    assert [module.training, module[0].training, module[1].training] == [True, True, False]
