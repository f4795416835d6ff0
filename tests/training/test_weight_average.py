"""The average of the weights and of the statistics of batch norm: against a slow reference, resumed, and shared out."""

import pytest
import torch
from torch import Tensor, distributed, nn

from lrformer.models import WideResNetConfig
from lrformer.models.spectral import apply_spectral_norm
from lrformer.training import train
from lrformer.training.atomic_files import read_tensors
from lrformer.training.state import read_state, write_state
from lrformer.training.step import OptimizerStep
from lrformer.training.weight_average import WeightAverage, average_weight, running_statistics
from tests.processes import run_together
from tests.tolerance import TOLERANCE, assert_close
from tests.training.small import PLAIN, QUIET, small, weights
from tests.training.test_resume import interrupt, stop_at

DECAY = 0.9
TINY = {"depth": 10, "widen_factor": 1}
CONVOLUTIONAL = small(
    PLAIN, model="wide_resnet28_10", model_overrides=TINY, epochs=2, batch_size=128, ema_decay=DECAY
)
STATISTICS = ("running_mean", "running_var")


def test_the_average_of_weights_is_the_slow_one():
    parameters = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
    average = WeightAverage(parameters)
    slow = [parameter.detach().double().clone() for parameter in parameters]
    for step in range(30):
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(torch.randn_like(parameter))
        average.update(average_weight(step, 0.9))
        decay = min(0.9, (1 + step) / (10 + step))
        slow = [
            decay * s + (1 - decay) * p.detach().double()
            for s, p in zip(slow, parameters, strict=True)
        ]
    for fast, reference in zip(average.averages, slow, strict=True):
        assert_close(fast, reference, TOLERANCE[torch.float32])


def test_swapping_the_average_in_gives_the_weights_back_to_the_bit():
    parameter = nn.Parameter(torch.randn(5))
    average = WeightAverage([parameter])
    with torch.no_grad():
        parameter.add_(1)
    before, address = parameter.detach().clone(), parameter.data_ptr()
    with average.swapped_in():
        assert torch.equal(parameter.detach(), average.averages[0])
        assert not torch.equal(parameter.detach(), before)
    assert torch.equal(parameter.detach(), before)
    assert parameter.data_ptr() == address


def test_statistics_are_those_of_batch_norms_and_no_other_buffers():
    model = WideResNetConfig(**TINY, img_size=8).build()
    apply_spectral_norm(model, bound=3.0, batch_norm=True)
    model.append = nn.BatchNorm1d(3, track_running_stats=False)
    named = {id(value): name for name, value in model.named_buffers()}
    found = [named[id(value)] for value in running_statistics(model)]
    wanted = [name for name in named.values() if name.endswith(STATISTICS)]
    assert found == wanted
    # Seven norms; the counts of batches and the vectors of spectral norm are left alone.
    assert len(found) == 14 < len(named) - 7


def test_statistics_are_swapped_in_and_given_back_to_the_bit():
    model = WideResNetConfig(**TINY, img_size=8).build().train()
    average = WeightAverage(model.parameters(), running_statistics(model))
    for step in range(3):
        model(torch.randn(8, 3, 8, 8))
        average.update(average_weight(step, DECAY))
    kept = average.averages[average.num_parameters :]
    before = [value.clone() for value in running_statistics(model)]
    addresses = [value.data_ptr() for value in running_statistics(model)]
    with average.swapped_in():
        for value, expected, trained in zip(running_statistics(model), kept, before, strict=True):
            assert torch.equal(value, expected)
            assert not torch.equal(value, trained)
        assert model.bn.num_batches_tracked == 3
    for value, expected in zip(running_statistics(model), before, strict=True):
        assert torch.equal(value, expected)
    assert [value.data_ptr() for value in running_statistics(model)] == addresses


def test_a_run_keeps_the_average_of_its_statistics(tmp_path, monkeypatch):
    slow: dict[str, Tensor] = {}
    num_steps = 0
    take = OptimizerStep.__call__

    def statistics(step: OptimizerStep) -> dict[str, Tensor]:
        buffers = step.method.named_buffers()
        return {name: v.double() for name, v in buffers if name.endswith(STATISTICS)}

    def watched(self: OptimizerStep, pieces):
        nonlocal num_steps
        slow.update({} if slow else statistics(self))
        take(self, pieces)
        decay = min(DECAY, (1 + num_steps) / (10 + num_steps))
        num_steps += 1
        now = statistics(self)
        slow.update({name: decay * slow[name] + (1 - decay) * now[name] for name in slow})

    monkeypatch.setattr(OptimizerStep, "__call__", watched)
    train(CONVOLUTIONAL, tmp_path, runtime=QUIET)
    kept, _ = read_tensors(tmp_path / "model.safetensors")
    assert num_steps == 8
    assert len(slow) == 14
    for name, reference in slow.items():
        assert_close(kept[name], reference, TOLERANCE[torch.float32])


@pytest.mark.parametrize("number", [2, 7])
def test_a_run_with_batch_norm_resumes_to_the_same_bits(tmp_path, monkeypatch, number):
    with monkeypatch.context() as patched:
        stop_at(patched, number, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(CONVOLUTIONAL, tmp_path / "stopped", runtime=QUIET)
    train(CONVOLUTIONAL, tmp_path / "stopped", runtime=QUIET)
    train(CONVOLUTIONAL, tmp_path / "whole", runtime=QUIET)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_state_without_averaged_statistics_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_at(patched, 8, interrupt)  # after the last step
        with pytest.raises(KeyboardInterrupt):
            train(CONVOLUTIONAL, tmp_path, runtime=QUIET)
    found = read_state(tmp_path)
    assert found is not None
    position, tensors = found
    averages = [name for name in tensors if name.startswith("average/")]
    for index in range(len(averages) - 14, len(averages)):
        del tensors[f"average/{index}"]
    write_state(tmp_path, position, tensors)
    train(CONVOLUTIONAL, tmp_path, runtime=QUIET)
    kept, _ = read_tensors(tmp_path / "model.safetensors")
    found = [name for name in kept if name.endswith(STATISTICS)]
    assert len(found) == 14
    for name in found:
        assert torch.equal(kept[name], tensors[f"model/{name}"])


def share_statistics(rank: int) -> None:
    distributed.init_process_group("gloo")
    weight, statistic = nn.Parameter(torch.full((2,), 5.0)), torch.zeros(3)
    average = WeightAverage([weight], [statistic])
    statistic += rank + 1
    average.update(0.5)
    with average.swapped_in():
        assert torch.equal(statistic, torch.full((3,), 0.5))
    assert torch.equal(statistic, torch.full((3,), rank + 1.0))


def test_all_processes_take_the_statistics_of_the_first():
    run_together(share_statistics)
