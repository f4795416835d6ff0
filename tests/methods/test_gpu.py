"""On a GPU every method predicts what it predicts on the CPU."""

import pytest
import torch

from lrformer.methods import list_methods
from tests.methods.tiny import TinyConvNet, digits, fit, small_method, tiny_lrformer

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", list_methods())
def test_it_trains_on_the_gpu_and_predicts_there_what_the_cpu_predicts(name: str) -> None:
    backbone = tiny_lrformer if name == "lrformer" else TinyConvNet
    method = small_method(name, backbone).cuda()
    train, test, _ = digits()
    on_gpu = torch.utils.data.TensorDataset(*(tensor[:200].cuda() for tensor in train.tensors))
    fit(method, on_gpu, epochs=1)
    x = test.tensors[0][:32]
    # The same generator on the CPU: what is drawn must not depend on the device.
    there = method.predict(x.cuda(), torch.Generator().manual_seed(0))
    here = method.cpu().predict(x, torch.Generator().manual_seed(0))
    assert there.logits.is_cuda
    assert torch.allclose(there.probs.cpu(), here.probs, atol=5e-3)
    for score in here.scores:
        expected = here.uncertainty(score)
        scale = expected.abs().max()
        assert (there.uncertainty(score).cpu() - expected).abs().max() < 0.02 * scale + 1e-4, score


@pytest.mark.parametrize("backbone", [TinyConvNet, tiny_lrformer])
def test_stacked_members_equal_a_loop_under_autocast(backbone) -> None:
    stacked = small_method("deep_ensemble", backbone, vectorize=True).cuda()
    looped = small_method("deep_ensemble", backbone, vectorize=False).cuda()
    for ensemble in (stacked, looped):
        for stage in range(2):
            ensemble.start_stage(stage)
            ensemble.finish_stage()
    looped.load_state_dict(stacked.state_dict())
    x = digits()[1].tensors[0][:16].cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        first, second = stacked.eval().predict(x), looped.eval().predict(x)
    assert torch.allclose(first.probs, second.probs, atol=2e-2)
