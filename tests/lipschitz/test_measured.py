import math

import pytest
import torch
from torch.func import jacrev, vmap

from lrformer.core import ConfigError
from lrformer.lipschitz import (
    attention_entropy,
    distortion,
    distortion_ratios,
    local_constant,
    singular_ratio,
)

F64 = torch.float64


def test_local_constant_equals_the_spectral_norm_of_each_exact_jacobian():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 6, dtype=F64, generator=generator)
    x = torch.randn(5, 2, 3, dtype=F64, generator=generator)

    def function(y):
        return torch.tanh(y.flatten(-2) @ weight).square()

    exact = torch.linalg.matrix_norm(vmap(jacrev(function))(x).flatten(2), ord=2)
    found = local_constant(function, x, num_steps=400, generator=generator)
    assert torch.allclose(found, exact, rtol=1e-6)
    early = local_constant(function, x, num_steps=2, generator=generator)
    assert bool((early <= exact * (1 + 1e-12)).all())


def test_local_constant_does_not_depend_on_the_batch_it_is_measured_in():
    x = torch.randn(7, 4, dtype=F64, generator=torch.Generator().manual_seed(1))

    def function(y):
        return y.square()

    whole = local_constant(function, x, num_steps=300)
    parts = local_constant(function, x, num_steps=300, batch_size=3)
    assert torch.allclose(whole, parts, rtol=1e-6)
    assert torch.allclose(whole, 2 * x.abs().amax(1), rtol=1e-3)


def test_a_constant_function_measures_zero():
    found = local_constant(lambda y: 0 * y, torch.ones(2, 3))
    assert found.tolist() == [0.0, 0.0]


def test_distortion_of_a_scaled_rotation_is_one_number():
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=F64))[0]
    x, y = torch.randn(20, 3, dtype=F64), torch.randn(20, 3, dtype=F64)
    report = distortion(lambda z: 3 * z @ rotation, x, y)
    assert report.smallest == pytest.approx(3)
    assert report.largest == pytest.approx(3)
    assert report.num_pairs == 20
    assert dict(report.quantiles)[0.5] == pytest.approx(3)


def test_distortion_leaves_out_equal_pairs_and_refuses_only_equal_pairs():
    x = torch.randn(4, 3)
    y = x.clone()
    y[0] += 1
    assert distortion_ratios(lambda z: z, x, y).tolist() == pytest.approx([1.0])
    with pytest.raises(ConfigError, match="all distances are zero"):
        distortion(lambda z: z, x, x)


def test_singular_ratio_is_the_quotient_of_the_two_norms_and_ignores_padding():
    q, x = torch.randn(2, 3, 5, 4), torch.randn(2, 5, 12)
    ratio = singular_ratio(q, x)
    z = torch.linalg.vector_norm(q[1, 2])
    m = torch.linalg.vector_norm(x[1], dim=-1).max()
    assert float(ratio[1, 2]) == pytest.approx(float(z / m))
    mask = torch.tensor([[False] * 3 + [True] * 2] * 2)
    short = singular_ratio(q[:, :, :3], x[:, :3])
    assert torch.allclose(singular_ratio(q, x, key_padding_mask=mask), short)
    assert float(singular_ratio(0 * q, 0 * x).max()) == 0


def test_entropy_is_zero_for_one_key_and_log_m_for_all():
    rows = torch.stack([torch.eye(4)[0], torch.full((4,), 0.25)])
    assert attention_entropy(rows).tolist() == pytest.approx([0.0, math.log(4)])


def test_no_steps_is_an_error():
    with pytest.raises(ConfigError, match=r"num_steps \(0\)"):
        local_constant(lambda y: y, torch.ones(1, 2), num_steps=0)
