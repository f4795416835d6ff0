"""`auto` takes our kernels where they are the fastest, and torch's attention everywhere else."""

import pytest
import torch

from lrformer.attention.backends import automatic, sdpa


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_without_a_gpu_torchs_attention_is_taken_with_every_setting(dtype, monkeypatch):
    q, k, v = torch.randn(3, 1, 2, 6, 8).to(dtype)
    coefficient = torch.full((1, 2), 0.1)
    padding = torch.zeros(1, 6, dtype=torch.bool)
    seen = []

    def recorded(*parts: torch.Tensor, **more: object) -> torch.Tensor:
        seen.append((parts, more))
        return v

    monkeypatch.setattr(sdpa, "squared_distance", recorded)
    automatic.squared_distance(q, k, v, coefficient, key_padding_mask=padding, dropout_p=0.1)
    [(parts, more)] = seen
    assert all(a is b for a, b in zip(parts, (q, k, v, coefficient), strict=True))
    assert more.pop("key_padding_mask") is padding
    assert more == {"attn_mask": None, "is_causal": False, "dropout_p": 0.1}
    assert automatic.kernels_for(q, k, v) is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({}, True),
        ({"dropout_p": 0.1}, False),
        ({"is_causal": True}, False),
        ({"dtype": torch.float32}, False),
    ],
    ids=str,
)
def test_on_a_gpu_the_kernels_are_taken_for_what_they_can_do(change, is_taken):
    q, k, v = torch.randn(3, 1, 2, 6, 16, device="cuda").to(change.pop("dtype", torch.bfloat16))
    assert (automatic.kernels_for(q, k, v, **change) is not None) == is_taken
