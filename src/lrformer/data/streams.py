"""Randomness that belongs to a sample: a hash of (seed, epoch, sample), the same on every device and in every batch.

A generator draws in the order of the batch, so that a sample would be augmented differently beside other samples or on
another number of processes. Here every number is a function of its key alone, by integer arithmetic that is exact on
the CPU and on the GPU.
"""

import math
from enum import IntEnum

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

MASK = 2**32 - 1
GOLDEN = 0x9E3779B9


class Stream(IntEnum):
    """What a number is drawn for: two streams of one sample are independent."""

    CROP = 1
    FLIP = 2
    POLICY = 3
    ERASE = 4
    PARTNER = 5
    MIX = 6
    NOISE = 7
    FIELD = 8


def hash32(values: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Return 32 well-mixed bits of every value (xor-shift and multiply, twice; no product leaves 63 bits)."""
    values = values & MASK
    values = ((values ^ (values >> 16)) * 0x21F0AAAD) & MASK
    values = ((values ^ (values >> 15)) * 0x735A2D97) & MASK
    return values ^ (values >> 15)


def computed_once(values: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return `values`, which torch.compile then computes by themselves, and not anew for every pixel that reads them.

    Without this a compiled batch repeats its hashes in every kernel, and takes minutes to compile.
    """
    return values.as_strided(values.size(), values.stride())


def sample_keys(indices: Int[Tensor, " b"], *, seed: int, epoch: int = 0) -> Int[Tensor, " b"]:
    """Return one key for each sample of one epoch; everything random about the sample follows from it."""
    start = torch.tensor([seed & MASK, (seed >> 32) & MASK, epoch], dtype=torch.int64)
    state = 0
    for word in hash32(start).tolist():
        state = int(hash32(torch.tensor((state + GOLDEN) ^ word)))
    return hash32(hash32(indices) ^ state)


def sample_bits(keys: Int[Tensor, " b"], stream: int, count: int) -> Int[Tensor, "b count"]:
    """Return `count` integers of 32 bits for each key, from one stream."""
    # The mask makes the numbers 64 bits wide for torch.compile, which would multiply them as 32-bit indices.
    counter = (torch.arange(1, count + 1, device=keys.device) & MASK) * GOLDEN
    return computed_once(hash32(hash32(keys + stream * 0x632BE5AB)[:, None] + counter))


def sample_uniforms(keys: Int[Tensor, " b"], stream: int, count: int) -> Float[Tensor, "b count"]:
    """Return `count` float32 numbers in [0, 1) for each key, with 24 random bits each."""
    return (sample_bits(keys, stream, count) >> 8).float() * 2.0**-24


def sample_normals(keys: Int[Tensor, " b"], stream: int, count: int) -> Float[Tensor, "b count"]:
    """Return `count` standard normal numbers for each key (Box and Muller)."""
    radius, angle = sample_uniforms(keys, stream, 2 * count).view(-1, count, 2).unbind(dim=2)
    # 1 - u lies in (0, 1], where the logarithm is finite.
    return (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()
