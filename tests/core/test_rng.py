import random

import numpy as np
import torch

from lrformer.core import make_generator, seed_everything


def test_one_seed_repeats_every_global_generator():
    draws = []
    for _ in range(2):
        seed_everything(7)
        draws.append((random.random(), int(np.random.get_state()[1][0]), torch.rand(()).item()))
    assert draws[0] == draws[1]


def test_a_generator_starts_from_its_seed_and_leaves_the_global_one_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = torch.rand(3, generator=make_generator(5))
    assert torch.equal(first, torch.rand(3, generator=make_generator(5)))
    assert torch.equal(before, torch.get_rng_state())
