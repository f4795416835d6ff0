"""The least bytes and operations of an attention, and the device's own measured ceilings."""

from dataclasses import dataclass
from typing import Any

import torch

from lrformer.bench.place import Place
from lrformer.bench.shapes import AttentionShape
from lrformer.bench.timing import Work, interleaved_times

# Tensors of the size of q that must cross memory, forward and backward. Dot product: q k v out, then
# q k v out grad read and three gradients written. Tied: q v x out, then q v out grad read (of x only one
# token has a gradient) and the gradients of q, v and x written; L2 attention has no x.
_TENSORS = {"dot_product": (4, 8), "lrsa": (4, 7), "l2": (3, 6)}
# Products of n x n x d, two operations for a multiply-add: scores and average going forward; scores
# again, and the gradients of weights, values, queries and keys going back.
_PRODUCTS = (2, 5)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What no implementation without whole matrices in memory can do without."""

    num_bytes: int
    num_operations: int


def floor_of(attention: str, shape: AttentionShape, element_bytes: int, *, backward: bool) -> Floor:
    """Return the least bytes and operations of a forward pass, or of forward and backward together."""
    last = 2 if backward else 1
    row_bytes = 4 * shape.batch * shape.num_heads * shape.num_tokens  # log-sum-exp, float32
    return Floor(
        num_bytes=sum(_TENSORS[attention][:last]) * shape.num_elements * element_bytes
        + last * row_bytes,
        num_operations=2 * sum(_PRODUCTS[:last]) * shape.num_scores * shape.head_dim,
    )


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What a large copy and a large matrix product reach on this device."""

    bytes_per_second: float
    operations_per_second: float

    def fractions(self, floor: Floor, milliseconds: float) -> dict[str, float]:
        """Return how much of each ceiling a call of that time reaches, and which one bounds it."""
        seconds = milliseconds / 1000
        return {
            "of_bandwidth": floor.num_bytes / self.bytes_per_second / seconds,
            "of_operations": floor.num_operations / self.operations_per_second / seconds,
        }


def measure_ceilings(place: Place, dtype: torch.dtype) -> tuple[Ceilings, dict[str, Any]]:
    """Return the ceilings and their record: a device-to-device copy, a square matrix product."""
    num_bytes = 2**30 if place.is_cuda else 2**26
    side = 8192 if place.is_cuda else 512
    source = torch.ones(num_bytes, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=place.device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    works = {
        "copy": Work(call=lambda: target.copy_(source)),
        "matmul": Work(call=lambda: torch.mm(left, right, out=product)),
    }
    times = interleaved_times(place, works, max_samples=30, seconds=0.1)
    # A copy reads and writes; the best sample, not the median: a ceiling is what can be reached.
    ceilings = Ceilings(
        bytes_per_second=2000 * num_bytes / min(times["copy"].samples),
        operations_per_second=2000 * side**3 / min(times["matmul"].samples),
    )
    record = {
        "copy_gb_per_second": ceilings.bytes_per_second / 1e9,
        "copy_bytes": num_bytes,
        "matmul_tflop_per_second": ceilings.operations_per_second / 1e12,
        "matmul_side": side,
        "dtype": str(dtype).removeprefix("torch."),
    }
    return ceilings, record
