"""`bench attention`: LRSA against torch's fused dot-product attention, shape by shape."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lrformer.attention.backends import BACKENDS
from lrformer.bench.attention_contenders import make_contenders
from lrformer.bench.attention_row import MEMORY_GOAL, SPEED_GOAL, RowSettings, measure_row
from lrformer.bench.journal import Journal
from lrformer.bench.place import Place, circumstances
from lrformer.bench.roofline import Ceilings, measure_ceilings
from lrformer.bench.shapes import (
    GOAL_SHAPES,
    GOAL_WIDTHS,
    SMALL_SHAPES,
    SMALL_WIDTHS,
    AttentionShape,
    parse_shapes,
)
from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_GROWTH_HEADS, _GROWTH_WIDTH, _GROWTH_TOKENS = 6, 64, 197


@dataclass(frozen=True, kw_only=True)
class AttentionBenchConfig:
    """What is measured; None means what suits the device: the goal's shapes on a GPU, small ones on a CPU.

    `growth` adds how the cost grows with the number of tokens, at a constant number of them in the
    batch, and with the batch. `seconds` is about what each contender gets for each figure.
    """

    shapes: tuple[str, ...] | None = None
    widths: tuple[int, ...] | None = None
    backends: tuple[str, ...] | None = None
    is_compiled: bool | None = None
    growth: bool = True
    dtype: str | None = None
    repeats: int = 50
    seconds: float = 0.15
    device: str = "auto"

    def __post_init__(self) -> None:
        check_backends(self.backends)
        check_effort(self.repeats, self.seconds)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigError(f"dtype ({self.dtype!r}) must be one of {', '.join(DTYPES)}.")
        parse_shapes(
            GOAL_SHAPES if self.shapes is None else self.shapes,
            GOAL_WIDTHS if self.widths is None else self.widths,
        )

    def filled(self, place: Place) -> "AttentionBenchConfig":
        """Return the config with what suits `place` wherever nothing was chosen."""
        chosen = {
            "shapes": GOAL_SHAPES if place.is_cuda else SMALL_SHAPES,
            "widths": GOAL_WIDTHS if place.is_cuda else SMALL_WIDTHS,
            "backends": place.backends,
            "is_compiled": place.is_cuda,
            "dtype": "bfloat16" if place.is_cuda else "float32",
        }
        return replace(
            self, **{name: v for name, v in chosen.items() if getattr(self, name) is None}
        )


def check_backends(backends: tuple[str, ...] | None) -> None:
    """Raise for a backend that is not there."""
    for name in backends or ():
        if name not in BACKENDS[1:]:
            raise ConfigError(
                f"backends ({name!r}) must be of {', '.join(BACKENDS[1:])}."
                f"{did_you_mean(name, BACKENDS[1:])}"
            )
    if backends is not None and not backends:
        raise ConfigError("backends must name at least one.")


def check_usable(backends: tuple[str, ...] | None, place: Place) -> None:
    """Raise if none of the backends that are asked for can run there: nothing of ours would be measured."""
    reasons = {name: place.why_unusable(name) for name in backends or ()}
    if reasons and None not in reasons.values():
        words = "; ".join(f"'{name}' {reason}" for name, reason in reasons.items())
        usable = [name for name in BACKENDS[1:] if place.why_unusable(name) is None]
        raise ConfigError(f"backends: {words}; name another of {', '.join(usable)}, or none.")


def check_effort(repeats: int, seconds: float) -> None:
    """Raise for numbers with which nothing would be measured."""
    if repeats < 1:
        raise ConfigError(f"repeats ({repeats}) must be at least 1.")
    if not 0 < seconds < 3600:
        raise ConfigError(f"seconds ({seconds}) must be above 0 and below 3600.")


def bench_attention(
    config: AttentionBenchConfig,
    out: Path | None = None,
    *,
    show: Callable[[str], None] = lambda _: None,
    add_row: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the record, written to `out` after every row; rows that `out` holds already are kept."""
    place = Place(config.device)
    check_usable(config.backends, place)
    config = config.filled(place)
    assert config.shapes is not None
    assert config.widths is not None
    journal = Journal(
        out, benchmark="attention", where=circumstances(place), settings=_settings(config)
    )
    todo = [("goal", shape) for shape in parse_shapes(config.shapes, config.widths)]
    if config.growth:
        todo += _growth(place)
    missing = [(part, shape) for part, shape in todo if not journal.has(f"{part} {shape}")]
    if missing:
        show("ceilings: a large copy, a large matrix product")
        ceilings, found = measure_ceilings(place, DTYPES[config.dtype or "float32"])
        journal.put("ceilings", found)
        for index, (part, shape) in enumerate(missing, 1):
            show(f"{index}/{len(missing)} {part} {shape}")
            row = {"key": f"{part} {shape}", "part": part}
            row |= _measure(place, shape, ceilings, config, is_goal=part == "goal")
            journal.add(row)
            add_row(row)
    return journal.record


def _settings(config: AttentionBenchConfig) -> dict[str, Any]:
    """Return what all rows of one record share."""
    return {
        "backends": list(config.backends or ()),
        "is_compiled": config.is_compiled,
        "dtype": config.dtype,
        "repeats": config.repeats,
        "seconds": config.seconds,
        "speed_goal": SPEED_GOAL,
        "memory_goal": MEMORY_GOAL,
    }


def _growth(place: Place) -> list[tuple[str, AttentionShape]]:
    """Return the shapes of both sweeps: over the tokens of a sample, and over the batch."""
    total, lengths, batches = (
        (65536, (64, 128, 256, 512, 1024, 2048, 4096, 8192), (1, 4, 16, 64, 256, 1024))
        if place.is_cuda
        else (512, (64, 128, 256), (1, 2, 4))
    )
    over_tokens = [
        (
            "tokens",
            AttentionShape(
                batch=total // n, num_tokens=n, num_heads=_GROWTH_HEADS, head_dim=_GROWTH_WIDTH
            ),
        )
        for n in lengths
    ]
    over_batch = [
        (
            "batch",
            AttentionShape(
                batch=b,
                num_tokens=_GROWTH_TOKENS,
                num_heads=_GROWTH_HEADS,
                head_dim=_GROWTH_WIDTH,
            ),
        )
        for b in batches
    ]
    return over_tokens + over_batch


def _measure(
    place: Place,
    shape: AttentionShape,
    ceilings: Ceilings,
    config: AttentionBenchConfig,
    *,
    is_goal: bool,
) -> dict[str, Any]:
    """Return one row; a row of a sweep is measured eager and for forward and backward only."""
    contenders = make_contenders(
        place, config.backends or (), is_compiled=is_goal and bool(config.is_compiled)
    )
    settings = RowSettings(
        dtype=DTYPES[config.dtype or "float32"],
        max_samples=config.repeats,
        seconds=config.seconds if is_goal else config.seconds / 3,
        has_forward=is_goal,
        has_errors=is_goal,
    )
    if not is_goal:
        contenders = [c for c in contenders if c.attention != "l2"]
    return measure_row(place, shape, contenders, ceilings, settings)
