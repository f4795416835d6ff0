"""How a similarity is computed. Reached only through the attention files.

Every backend is a module with the same two functions: `dot_product` and `squared_distance`. That of our kernels
has two more, for coefficients that depend on the norms of the queries.
"""

from types import ModuleType

from torch import Tensor

from lrformer.attention.backends import automatic, reference, sdpa
from lrformer.core import ConfigError

BACKENDS = ("auto", "reference", "sdpa", "triton")


def resolve_backend(name: str) -> ModuleType:
    """Return the backend called `name`; `auto` takes the fastest that can do the call."""
    if name == "auto":
        return automatic
    if name == "sdpa":
        return sdpa
    if name == "reference":
        return reference
    if name != "triton":
        raise ConfigError(f"backend ({name!r}) must be one of {', '.join(BACKENDS)}.")
    if not automatic.HAS_TRITON:
        raise ConfigError(
            "backend ('triton') needs the package triton, which comes with torch for CUDA; "
            "use backend='auto' or 'sdpa'."
        )
    from lrformer.attention.backends import triton

    return triton


def norm_kernels(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_padding_mask: Tensor | None,
    dropout_p: float,
) -> ModuleType | None:
    """Return the backend that gives q the gradient of its own norm, where `name` stands for it in this call.

    Those are the kernels for tied queries and keys, 16-bit numbers and no padding. float32 is left out:
    its kernels see shifted queries, of another norm.
    """
    if name not in ("auto", "triton") or k is not q or key_padding_mask is not None:
        return None
    if q.dtype not in automatic.NARROW or not q.dtype == v.dtype == sdpa.kernel_dtype(v):
        return None
    if name == "auto":
        return automatic.kernels_for(q, k, v, dropout_p=dropout_p)
    kernels = resolve_backend(name)
    reason = kernels.refusal(
        q, k, v, attn_mask=None, is_causal=False, dropout_p=dropout_p, dtype=q.dtype
    )
    return kernels if reason is None else None


__all__ = ["BACKENDS", "norm_kernels", "reference", "resolve_backend", "sdpa"]
