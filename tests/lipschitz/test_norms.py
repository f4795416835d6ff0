import pytest
import torch

from lrformer.core import ConfigError
from lrformer.lipschitz import gram_spectral_norm, smallest_singular_value, spectral_norm
from lrformer.lipschitz.norms import (
    frobenius_operator_norm,
    max_token_norm,
    max_token_operator_ceiling,
    max_token_operator_norm,
)
from lrformer.lipschitz.scalar import largest, root, smallest


def gaussian(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 64), (192, 48)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_gram_iteration_is_an_upper_bound_within_three_percent(shape, dtype, scale):
    weight = scale * gaussian(*shape, dtype=dtype)
    exact, upper = spectral_norm(weight), float(gram_spectral_norm(weight))
    assert exact <= upper <= 1.03 * exact


def test_gram_iteration_bounds_the_worst_case_of_equal_singular_values():
    weight = torch.linalg.qr(gaussian(384, 384))[0]
    assert 1 <= float(gram_spectral_norm(weight)) <= 384 ** (1 / 256) * (1 + 1e-5)


def test_gram_iteration_takes_batches_and_zero_matrices():
    weights = torch.stack([gaussian(5, 3, seed=1), gaussian(5, 3, seed=2), torch.zeros(5, 3)])
    together = gram_spectral_norm(weights.double())
    assert torch.equal(together, torch.stack([gram_spectral_norm(w) for w in weights.double()]))
    assert float(together[2]) < 1e-2


def test_gradient_of_gram_iteration_points_along_the_top_singular_pair():
    weight = torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)).requires_grad_()
    gram_spectral_norm(weight).backward()
    assert weight.grad is not None
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[0, 0] = 1
    assert torch.allclose(weight.grad, expected, atol=1e-5)


def test_gram_iteration_ignores_autocast():
    weight = gaussian(32, 32, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = gram_spectral_norm(weight)
    assert torch.equal(under_autocast, gram_spectral_norm(weight))


def test_a_wide_kernel_has_smallest_singular_value_zero():
    assert smallest_singular_value(gaussian(4, 2)) == 0
    assert smallest_singular_value(2 * torch.eye(3)) == pytest.approx(2)


def test_frobenius_operator_norm_is_reached_by_a_direction_and_exceeded_by_none():
    jacobian = gaussian(3, 2, 3, 4)
    flat = jacobian.reshape(6, 12)
    value = frobenius_operator_norm(jacobian)
    best = torch.linalg.svd(flat).Vh[0]
    assert torch.allclose(torch.linalg.vector_norm(flat @ best), value)
    others = torch.nn.functional.normalize(gaussian(12, 500, seed=3), dim=0)
    assert float(torch.linalg.vector_norm(flat @ others, dim=0).max()) <= float(value)


def test_max_token_operator_norm_lies_between_samples_and_its_ceiling():
    generator = torch.Generator().manual_seed(0)
    for seed in range(5):
        jacobian = gaussian(3, 2, 4, 2, seed=seed)
        value = float(max_token_operator_norm(jacobian, generator=generator))
        inputs = torch.nn.functional.normalize(gaussian(2000, 4, 2, seed=seed), dim=-1)
        sampled = max_token_norm(torch.einsum("iojd,bjd->bio", jacobian, inputs)).max()
        assert float(sampled) <= value <= float(max_token_operator_ceiling(jacobian)) * (1 + 1e-12)


def test_max_token_operator_norm_is_exact_for_one_row_per_block():
    jacobian = gaussian(1, 1, 3, 2)
    expected = torch.linalg.vector_norm(jacobian[0, 0], dim=-1).sum()
    assert torch.allclose(max_token_operator_norm(jacobian), expected)


def test_scalars_mix_floats_and_tensors():
    t = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert smallest(1.0, 2.0) == 1.0
    assert root(4.0) == 2.0
    assert float(smallest(t, 1.0).detach()) == 1.0
    value = largest(1.0, t * t)
    value.backward()
    assert float(t.grad) == 4.0


def test_no_steps_is_an_error():
    with pytest.raises(ConfigError, match=r"num_steps \(0\)"):
        gram_spectral_norm(torch.eye(2), num_steps=0)
