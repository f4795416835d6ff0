"""Who takes part in `bench attention`, and on what inputs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lrformer.attention import l2_attention, lrsa_attention
from lrformer.bench.place import Place
from lrformer.bench.shapes import AttentionShape

_FUSED = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def alpha_of(num_tokens: int) -> float:
    """Return the default alpha, 100 at the 197 tokens of a ViT, at the same temperature for any number."""
    return 100.0 * (num_tokens / 197) ** 0.5


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One draw of inputs: q, k, v of shape (b, h, n, d), x of (b, n, h d), and the output's gradient."""

    q: Tensor
    k: Tensor
    v: Tensor
    x: Tensor
    grad: Tensor

    def leaves(self, attention: str) -> dict[str, Tensor]:
        """Return what `attention` reads and gives gradients to; tied attentions read one tensor as q and k."""
        names = {"dot_product": "qkv", "lrsa": "qvx", "l2": "qv"}[attention]
        return {name: getattr(self, name) for name in names}


def draw_inputs(shape: AttentionShape, dtype: torch.dtype, place: Place, seed: int) -> Inputs:
    """Return random tokens and their random projections."""
    generator = torch.Generator(place.device).manual_seed(seed)
    width = shape.num_heads * shape.head_dim

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=place.device)

    x = normal(shape.batch, shape.num_tokens, width).to(dtype)

    def projected() -> Tensor:
        out = x @ (normal(width, width) * width**-0.5).to(dtype)
        heads = out.view(shape.batch, shape.num_tokens, shape.num_heads, shape.head_dim)
        return heads.transpose(1, 2).contiguous().requires_grad_()

    q, k, v = projected(), projected(), projected()
    return Inputs(q=q, k=k, v=v, x=x.requires_grad_(), grad=normal(*q.shape).to(dtype))


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to compute one attention; `attend` takes the leaves of its attention by name."""

    attention: str
    backend: str
    is_compiled: bool
    attend: Callable[..., Tensor]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def name(self) -> str:
        """Return a name that no other contender of a row has."""
        return f"{self.attention} {self.backend} {'compiled' if self.is_compiled else 'eager'}"

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the output, ready for a backward pass."""
        return self.attend(**inputs.leaves(self.attention))

    def forward_backward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return the gradients of the leaves."""
        leaves = tuple(inputs.leaves(self.attention).values())
        return torch.autograd.grad(self.forward(inputs), leaves, inputs.grad)


def make_contenders(
    place: Place, backends: tuple[str, ...], *, is_compiled: bool
) -> list[Contender]:
    """Return torch's fused attentions, then LRSA and L2 attention through each of our backends."""
    fused = _FUSED if place.is_cuda else {"flash": _FUSED["flash"]}
    found = [
        Contender(
            attention="dot_product",
            backend=name,
            is_compiled=False,
            attend=fused_dot_product,
            context=partial(sdpa_kernel, backend),
        )
        for name, backend in fused.items()
    ]
    for backend in backends:
        ways = (False, True) if is_compiled else (False,)
        found += [_contender("lrsa", backend, is_compiled=way) for way in ways]
        if backend != "reference":
            found.append(_contender("l2", backend, is_compiled=False))
    return found


def fused_dot_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return torch's fused dot-product attention."""
    return F.scaled_dot_product_attention(q, k, v)


def _contender(attention: str, backend: str, *, is_compiled: bool) -> Contender:
    def lrsa(q: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return lrsa_attention(q, q, v, x, alpha=alpha_of(q.shape[2]), backend=backend)

    def l2(q: Tensor, v: Tensor) -> Tensor:
        return l2_attention(q, q, v, backend=backend)

    attend = lrsa if attention == "lrsa" else l2
    return Contender(
        attention=attention,
        backend=backend,
        is_compiled=is_compiled,
        attend=torch.compile(attend, dynamic=False, fullgraph=True) if is_compiled else attend,
    )
