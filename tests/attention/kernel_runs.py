"""How the tests of the Triton kernels draw inputs, run and compare: on a GPU, or interpreted."""

import os

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.attention.inputs import projections, tokens

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not IS_INTERPRETED else "cpu"
DTYPES = [torch.float32, torch.float16]
if DEVICE == "cuda":
    DTYPES.append(torch.bfloat16)
# Triton 3.6, of torch 2.11, reads the end of a loop from an array of one number, which numpy refuses from 2.4 on.
CAN_INTERPRET = torch.__version__ >= (2, 12) or np.lib.NumpyVersion(np.__version__) < "2.4.0"
needs_kernels = pytest.mark.skipif(
    DEVICE == "cpu" and not (IS_INTERPRETED and CAN_INTERPRET),
    reason="needs a GPU, or TRITON_INTERPRET=1 (and torch 2.12 where numpy is 2.4 or newer)",
)

# The largest relative error of an output or gradient. 16-bit kernels also round the weights.
BOUND = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def norm_error(actual: Tensor, expected: Tensor) -> float:
    """Return ||actual - expected|| / ||expected||; NaN counts as infinite."""
    difference = (actual.detach().double().cpu() - expected.detach().cpu()).norm()
    error = float(difference / expected.detach().norm().cpu().clamp_min(1e-30))
    return error if error == error else float("inf")


def results(function, *parts: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the output and the gradients of every part, with `grad` as the output's."""
    leaves = [part.detach().clone().requires_grad_() for part in parts]
    out = function(*leaves)
    return [out, *torch.autograd.grad(out, leaves, grad.to(out.dtype))]


def draw(kind: str, num_tokens: int, width: int, dtype: torch.dtype, *, heads: int = 2):
    """Return x, q, k, v and an output gradient, all rounded to `dtype`."""
    x = tokens(kind, 2, num_tokens, heads * width)
    q, k, v = projections(x, heads, tie_qk=False)
    grad = torch.randn(q.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    return [part.to(DEVICE, dtype) for part in (x, q, k, v, grad)]
