"""Whole models side by side: timm's with its fused attention, and ours with each attention backend."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lrformer.attention import use_backend
from lrformer.bench.attention import check_backends, check_effort
from lrformer.bench.place import Place
from lrformer.core import ConfigError
from lrformer.models import create_model

COMPILE_WAYS = ("model", "blocks", "none")
NUM_CLASSES = 1000
IMG_SIZE = 224
THROUGHPUT_GOAL = 0.97
OURS = "lrformer_small_patch16_224"
RIVAL = "vit_small_patch16_224"


@dataclass(frozen=True, kw_only=True)
class ModelContender:
    """One model; `attention` is None for timm's."""

    attention: str | None
    backend: str | None

    @property
    def name(self) -> str:
        """Return a name that no other contender has."""
        return f"timm {RIVAL}" if self.attention is None else f"{self.attention} {self.backend}"

    def build(self, depth: int | None) -> nn.Module:
        """Return the model with random weights."""
        changes: dict[str, Any] = {} if depth is None else {"depth": depth}
        if self.attention is not None:
            return create_model(OURS, NUM_CLASSES, attention=self.attention, **changes)
        import timm

        model = timm.create_model(RIVAL, pretrained=False, num_classes=NUM_CLASSES, **changes)
        if not all(getattr(block.attn, "fused_attn", False) for block in _blocks(model)):
            raise ConfigError(
                "timm's fused attention is switched off (TIMM_FUSED_ATTN=0, or set_fused_attn(False)); "
                "switch it on to measure against it."
            )
        return model

    def context(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context in which the model computes with its backend."""
        return nullcontext() if self.backend is None else use_backend(model, self.backend)


def make_contenders(backends: tuple[str, ...]) -> tuple[ModelContender, list[ModelContender]]:
    """Return timm's model, and ours in the order in which they are measured."""
    ours = [ModelContender(attention="lrsa", backend=backend) for backend in backends]
    ours.append(ModelContender(attention="dot_product", backend="sdpa"))
    return ModelContender(attention=None, backend=None), ours


def usual_backends(place: Place) -> tuple[str, ...]:
    """Return our backends that can run there, latest first, without the one that keeps whole matrices."""
    return tuple(name for name in reversed(place.backends) if name != "reference")


def compile_model(model: nn.Module, way: str) -> None:
    """Compile a model in place: as one, or its blocks, which then share their code."""
    if way == "model":
        model.compile(dynamic=False)
    elif way == "blocks":
        for block in _blocks(model):
            block.compile(dynamic=False)


def _blocks(model: nn.Module) -> Any:
    return model.get_submodule("blocks")


def check_model_settings(
    *,
    batches: tuple[int, ...] | None,
    backends: tuple[str, ...] | None,
    compile_way: str | None,
    depth: int | None,
    repeats: int,
    seconds: float,
) -> None:
    """Raise for settings of a bench of models that cannot work."""
    check_backends(backends)
    check_effort(repeats, seconds)
    if batches is not None and (not batches or min(batches) < 1):
        raise ConfigError(f"batch ({', '.join(map(str, batches))}) must be at least 1.")
    if compile_way is not None and compile_way not in COMPILE_WAYS:
        raise ConfigError(f"compile ({compile_way!r}) must be one of {', '.join(COMPILE_WAYS)}.")
    if depth is not None and depth < 1:
        raise ConfigError(f"depth ({depth}) must be at least 1.")


def random_images(place: Place, batch: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a fixed batch of noise."""
    generator = torch.Generator(place.device).manual_seed(0)
    shape = (batch, 3, IMG_SIZE, IMG_SIZE)
    return torch.randn(shape, generator=generator, device=place.device).to(dtype)
