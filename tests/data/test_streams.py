import pytest
import torch
from scipy import stats

from lrformer.data.streams import (
    Stream,
    hash32,
    sample_bits,
    sample_keys,
    sample_normals,
    sample_uniforms,
)


def _slow_hash(value: int) -> int:
    value &= 2**32 - 1
    value = (value ^ (value >> 16)) * 0x21F0AAAD % 2**32
    value = (value ^ (value >> 15)) * 0x735A2D97 % 2**32
    return value ^ (value >> 15)


def test_the_hash_equals_arithmetic_on_python_integers():
    values = torch.tensor([0, 1, 2, 2**31, 2**32 - 1, 123456789])
    assert hash32(values).tolist() == [_slow_hash(int(v)) for v in values]
    assert hash32(torch.arange(100_000)).unique().numel() == 100_000


def test_a_sample_has_the_same_numbers_in_every_batch():
    everything = sample_uniforms(sample_keys(torch.arange(50), seed=3, epoch=2), Stream.CROP, 4)
    some = sample_uniforms(sample_keys(torch.tensor([7, 3, 40]), seed=3, epoch=2), Stream.CROP, 4)
    assert torch.equal(some, everything[[7, 3, 40]])


@pytest.mark.parametrize("other", [{"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3},
                                   {"seed": 3 + 2**32, "epoch": 2}])  # fmt: skip
def test_another_seed_or_epoch_gives_other_keys(other):
    keys = sample_keys(torch.arange(1000), seed=3, epoch=2)
    assert (sample_keys(torch.arange(1000), **other) == keys).float().mean() < 0.01


def test_uniforms_are_uniform_and_streams_and_neighbors_independent():
    keys = sample_keys(torch.arange(4000), seed=0)
    first = sample_uniforms(keys, Stream.CROP, 3).double()
    second = sample_uniforms(keys, Stream.FLIP, 3).double()
    assert 0 <= first.min() < first.max() < 1
    assert stats.kstest(first.flatten().numpy(), "uniform").pvalue > 1e-3
    table = torch.cat([first, second, first.roll(1, dims=0)], dim=1)
    correlation = torch.corrcoef(table.T) - torch.eye(9)
    assert correlation.abs().max() < 0.06


def test_normals_are_normal():
    draws = sample_normals(sample_keys(torch.arange(300), seed=1), Stream.NOISE, 30)
    assert stats.kstest(draws.flatten().double().numpy(), "norm").pvalue > 1e-3
    assert sample_bits(torch.tensor([5]), Stream.NOISE, 2).shape == (1, 2)
