"""What every test of a kernel runs under."""

import pytest

from lrformer.attention.backends import resolve_backend
from tests.attention.kernel_runs import DEVICE


@pytest.fixture(autouse=True)
def _one_choice_of_blocks(request, monkeypatch) -> None:
    """On a GPU, try no other block sizes: each costs a compilation."""
    is_kernel = request.node.get_closest_marker("kernel") is not None
    if DEVICE == "cuda" and is_kernel and "tuned" not in request.node.name:
        resolve_backend("triton")
        from lrformer.attention.backends.triton import launching

        blocks = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
        monkeypatch.setattr(launching, "FIXED", blocks)
