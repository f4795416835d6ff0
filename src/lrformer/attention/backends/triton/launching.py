"""How a kernel is launched: the stated space of block sizes, tried once for each kind of call and kept.

Where there is no GPU, Triton's interpreter runs the same kernels for the tests, with one fixed choice.
"""

from collections.abc import Callable
from subprocess import SubprocessError
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver

# (rows of a program, rows of a step of its loop, warps, stages of the pipeline, registers of a thread at most)
Choice = tuple[int, int, int, int, int | None]

FORWARD: tuple[Choice, ...] = (
    (64, 64, 4, 2, None),
    (64, 64, 4, 3, None),
    (64, 64, 4, 3, 128),
    (64, 32, 4, 3, 168),
    (128, 32, 4, 4, None),
    (128, 64, 8, 3, None),
)
BACKWARD: tuple[Choice, ...] = (
    (64, 32, 4, 3, 168),
    (64, 64, 4, 2, None),
    (64, 64, 4, 3, None),
    (128, 64, 8, 2, None),
    (64, 32, 4, 2, None),
)
IS_INTERPRETED: bool = knobs.runtime.interpret
# Taken instead of the fastest where it is set: the interpreter cannot measure.
FIXED: dict[str, Any] | None = {"BLOCK_M": 16, "BLOCK_N": 16} if IS_INTERPRETED else None
KEY = ("bucket", "WIDTH", "HAS_REST", "HAS_SLOPE")

OLDEST_GPU = (8, 0)

Launch = Callable[..., None]


def why_unusable() -> str | None:
    """Return what keeps Triton from working on this machine, or None."""
    if IS_INTERPRETED:
        return None
    try:
        driver.active.get_current_target()
    except (ImportError, OSError, RuntimeError, SubprocessError) as error:  # no C compiler, say
        return f"cannot start ({type(error).__name__}: {error})"
    gpus = range(torch.cuda.device_count())
    oldest = min((torch.cuda.get_device_capability(gpu) for gpu in gpus), default=OLDEST_GPU)
    if oldest < OLDEST_GPU:
        return f"needs compute capability 8.0, and a GPU here has {oldest[0]}.{oldest[1]}"
    return None


def tuned(kernel: Any, space: tuple[Choice, ...]) -> Launch:
    """Return a function that launches `kernel` with the fastest of `space`.

    The first call of a kind (octave of length, width, dtype, what is written) tries them all; Triton keeps what it
    found on disk. Later calls go past the tuner, whose bookkeeping costs more than a launch.
    """
    configs = [
        triton.Config(
            {"BLOCK_M": rows, "BLOCK_N": others},
            num_warps=warps,
            num_stages=stages,
            maxnreg=registers,
        )
        for rows, others, warps, stages, registers in space
    ]
    left_over = {name: rule for name, rule in LEFT_OVER.items() if name in kernel.arg_names}
    tunable: Any = triton.heuristics(left_over)(kernel) if left_over else kernel
    if not IS_INTERPRETED:
        key = [name for name in KEY if name in kernel.arg_names]
        tunable = triton.autotune(configs, key=key, cache_results=True)(tunable)
    chosen: dict[tuple[Any, ...], dict[str, Any]] = {}

    def launch(num_slots: int, num_tokens: int, *arguments: Any, **constants: Any) -> None:
        if num_slots * num_tokens == 0:  # nothing to measure either
            return
        kind = (arguments[0].dtype, arguments[0].device, *constants.items())
        choice = FIXED or chosen.get(kind)
        if choice is None:

            def grid(tried: dict[str, Any]) -> tuple[int]:
                return (num_slots * triton.cdiv(num_tokens, tried["BLOCK_M"]),)

            with torch.cuda.device_of(arguments[0]):
                tunable[grid](*arguments, **constants)
            chosen[kind] = tunable.best_config.all_kwargs()
            return
        sizes = {"num_tokens": num_tokens, **choice}
        choice = {**choice, **{name: rule(sizes) for name, rule in left_over.items()}}
        grid_size = num_slots * -(-num_tokens // choice["BLOCK_M"])
        run(kernel, grid_size, *arguments, **constants, **choice)

    return launch


def run(kernel: Any, num_programs: int, *arguments: Any, **constants: Any) -> None:
    """Launch `kernel` on the device of its first tensor: Triton takes the current one."""
    if num_programs == 0:
        return
    with torch.cuda.device_of(arguments[0]):
        kernel[(num_programs,)](*arguments, **constants)


def _tail(arguments: dict[str, Any]) -> int:
    """Return the step of the loop that holds the tokens left over by whole ones: 0 if there are none."""
    left = arguments["num_tokens"] % arguments["BLOCK_N"]
    return max(16, _power_of_two(left)) if left else 0


def _last(arguments: dict[str, Any]) -> int:
    """Return the rows of the last program of a head: as few as hold those left over by whole blocks."""
    left = arguments["num_tokens"] % arguments["BLOCK_M"]
    return max(16, _power_of_two(left)) if left else arguments["BLOCK_M"]


LEFT_OVER = {"TAIL": _tail, "LAST": _last}


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def constants_of(q: Tensor) -> dict[str, Any]:
    """Return the compile-time constants of a call: widths, rounding, and the length in octaves."""
    width = q.shape[-1]
    return {
        "bucket": _power_of_two(q.shape[-2]),
        "WIDTH": width,
        "COLUMNS": max(16, _power_of_two(width)),
        "PRECISION": "ieee" if q.element_size() == 4 else "tf32",
    }


def factor_of(q: Tensor) -> float:
    """Return a power of two that keeps gradients over D, between 1 and n, in the range of float16."""
    return 2.0 ** (q.shape[-2].bit_length() // 2) if q.dtype == torch.float16 else 1.0


def rows_contiguous(x: Tensor) -> Tensor:
    """Return `x` with its last dimension contiguous, copied only if it must be.

    Also copied where the tokens of one head lie so far apart that 32 bits cannot count to the last.
    """
    if x.stride(-1) == 1 and x.stride(-2) * x.shape[-2] < 2**31:
        return x
    return x.contiguous()


def tokens_first(like: Tensor) -> Tensor:
    """Return an empty tensor of the shape (b, h, n, d) that lies in memory as (b, n, h, d)."""
    batch, heads, tokens, width = like.shape
    return like.new_empty(batch, tokens, heads, width).transpose(1, 2)
