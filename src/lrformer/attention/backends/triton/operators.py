"""The kernels as operators of torch, with fake tensors and vmap, so that compile and export see them."""

import torch
from torch import Tensor

from lrformer.attention.backends.triton import tied, tied_backward, untied
from lrformer.attention.backends.triton.launching import (
    BACKWARD,
    FORWARD,
    constants_of,
    factor_of,
    rows_contiguous,
    run,
    tokens_first,
    tuned,
)

ROWS = 64  # of the kernels that only pass over their input
SHORT_ELEMENTS = 65536

_tied_forward = tuned(tied.forward_kernel, FORWARD)
_tied_backward = tuned(tied_backward.backward_kernel, BACKWARD)
_untied_forward = tuned(untied.forward_kernel, FORWARD)
_untied_backward_keys = tuned(untied.backward_keys_kernel, BACKWARD)
_untied_backward_queries = tuned(untied.backward_queries_kernel, BACKWARD)


@torch.library.custom_op("lrformer::squared_norms", mutates_args=())
def squared_norms(q: Tensor) -> Tensor:
    """Return ||q_i||^2 of every token in float32; it has no gradient."""
    return _squares(rows_contiguous(q))


@squared_norms.register_fake
def _(q: Tensor) -> Tensor:
    return _per_token(q)


@torch.library.custom_op("lrformer::tied_squared_distance", mutates_args=())
def tied_squared_distance(
    q: Tensor,
    v: Tensor,
    coefficient: Tensor,
    squares: Tensor,
    slope: Tensor | None,
    has_backward: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return softmax(-c ||q_i - q_j||^2) v; and for the backward pass what rounding took, and 1/D_i.

    `squares` are the `squared_norms` of q. Where c is a function of ||Q||, which is not seen from outside,
    `slope` is (dc / d||Q||) / ||Q||, and the gradient of q has that part too.
    """
    q, v, coefficient = rows_contiguous(q), rows_contiguous(v), coefficient.contiguous()
    batch, heads, tokens, _ = q.shape
    out, rest, share = tokens_first(v), _rest(v, has_backward), _per_token(q)
    _tied_forward(
        batch * heads,
        tokens,
        q, v, coefficient, squares.contiguous(), out, rest, share,
        *q.stride()[:3], *v.stride()[:3],
        heads, tokens,
        HAS_REST=rest.numel() > 0,
        **constants_of(q),
    )  # fmt: skip
    return out, rest, share


@tied_squared_distance.register_fake
def _(
    q: Tensor,
    v: Tensor,
    coefficient: Tensor,
    squares: Tensor,
    slope: Tensor | None,
    has_backward: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return tokens_first(v), _rest(v, has_backward), _per_token(q)


@torch.library.custom_op("lrformer::tied_squared_distance_backward", mutates_args=())
def tied_squared_distance_backward(
    grad: Tensor,
    q: Tensor,
    v: Tensor,
    coefficient: Tensor,
    squares: Tensor,
    slope: Tensor | None,
    out: Tensor,
    rest: Tensor,
    share: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, v and the coefficient."""
    grad, q, v = rows_contiguous(grad), rows_contiguous(q), rows_contiguous(v)
    coefficient, squares, share = coefficient.contiguous(), squares.contiguous(), share.contiguous()
    batch, heads, tokens, _ = q.shape
    factor = factor_of(q)
    shared, delta, arrived = _gradient_parts(out, rest, grad, share, factor)
    grad_q, grad_v, parts = tokens_first(q), tokens_first(v), _per_token(q)
    grad_c = torch.zeros_like(coefficient) if tokens == 0 else torch.empty_like(coefficient)
    slope = None if slope is None else slope.contiguous()
    constants = constants_of(q)
    _tied_backward(
        batch * heads,
        tokens,
        q, v, shared, coefficient, coefficient if slope is None else slope, squares, delta, arrived,
        grad_q, grad_v, parts, grad_c,
        *q.stride()[:3], *v.stride()[:3],
        heads, tokens,
        factor=factor,
        HAS_SLOPE=slope is not None and _is_short(q),
        **constants,
    )  # fmt: skip
    if slope is not None and not _is_short(q):
        run(
            tied_backward.slope_kernel,
            batch * heads * -(-tokens // ROWS),
            q, slope, grad_c, grad_q, *q.stride()[:3], heads, tokens,
            WIDTH=constants["WIDTH"], COLUMNS=constants["COLUMNS"], ROWS=ROWS,
        )  # fmt: skip
    return grad_q, grad_v, grad_c


@tied_squared_distance_backward.register_fake
def _(
    grad: Tensor,
    q: Tensor,
    v: Tensor,
    coefficient: Tensor,
    squares: Tensor,
    slope: Tensor | None,
    out: Tensor,
    rest: Tensor,
    share: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return tokens_first(q), tokens_first(v), coefficient.new_empty(coefficient.shape)


@torch.library.custom_op("lrformer::squared_distance", mutates_args=())
def squared_distance(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    coefficient: Tensor,
    padding: Tensor | None,
    has_backward: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return softmax(-c ||q_i - k_j||^2) v over the keys that are not padding; and, for the backward pass,
    what rounding took, log2 of the sum of exponentials and ||k_j||^2 (infinite for padding).
    """
    q, k, v = rows_contiguous(q), rows_contiguous(k), rows_contiguous(v)
    batch, heads, tokens, _ = q.shape
    out, rest, level = tokens_first(v), _rest(v, has_backward), _per_token(q)
    squares = _squares(k)
    if padding is not None:
        squares.masked_fill_(padding[:, None, :], float("inf"))
    _untied_forward(
        batch * heads,
        tokens,
        q, k, v, coefficient.contiguous(), squares, out, rest, level,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        heads, tokens,
        HAS_REST=rest.numel() > 0,
        **constants_of(q),
    )  # fmt: skip
    return out, rest, level, squares


@squared_distance.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    coefficient: Tensor,
    padding: Tensor | None,
    has_backward: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tokens_first(v), _rest(v, has_backward), _per_token(q), _per_token(q)


@torch.library.custom_op("lrformer::squared_distance_backward", mutates_args=())
def squared_distance_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    coefficient: Tensor,
    out: Tensor,
    rest: Tensor,
    level: Tensor,
    squares: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and the coefficient."""
    grad, q, k, v = (rows_contiguous(part) for part in (grad, q, k, v))
    batch, heads, tokens, _ = q.shape
    _, delta, _ = _gradient_parts(out, rest, grad, None, 1.0)
    grad_q, grad_k, grad_v = tokens_first(q), tokens_first(k), tokens_first(v)
    grad_c = q.new_empty((2, batch, heads, tokens), dtype=torch.float32)
    per_head = (coefficient.contiguous(), squares.contiguous(), level.contiguous(), delta)
    read = (q, k, v, grad, *per_head)
    strides = (stride for part in (q, k, v, grad) for stride in part.stride()[:3])
    sizes = (*strides, heads, tokens)
    grid = (batch * heads, tokens)
    constants = constants_of(q)
    _untied_backward_keys(*grid, *read, grad_k, grad_v, grad_c[0], *sizes, **constants)
    _untied_backward_queries(*grid, *read, grad_q, grad_c[1], *sizes, **constants)
    return grad_q, grad_k, grad_v, grad_c.sum((0, -1))


@squared_distance_backward.register_fake
def _(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    coefficient: Tensor,
    out: Tensor,
    rest: Tensor,
    level: Tensor,
    squares: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = tokens_first(q), tokens_first(k), tokens_first(v)
    return *grads, coefficient.new_empty(coefficient.shape)


def _fold(operator):
    """Return the rule of `operator` under vmap: one more dimension is more samples."""

    def rule(info, in_dims, *arguments):
        size = info.batch_size
        folded = [
            x if not isinstance(x, Tensor)
            else (x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
            for x, dim in zip(arguments, in_dims, strict=True)
        ]  # fmt: skip
        out = operator(*folded)
        if isinstance(out, Tensor):
            return out.unflatten(0, (size, -1)), 0
        return tuple(x.unflatten(0, (size, -1)) for x in out), tuple(0 for _ in out)

    return rule


for _operator in (
    squared_norms,
    tied_squared_distance,
    tied_squared_distance_backward,
    squared_distance,
    squared_distance_backward,
):
    _operator.register_vmap(_fold(_operator))


def _squares(q: Tensor) -> Tensor:
    """Return ||q_i||^2 of every token in float32."""
    batch, heads, tokens, _ = q.shape
    squares = _per_token(q)
    constants = constants_of(q)
    run(
        tied.squares_kernel,
        batch * heads * -(-tokens // ROWS),
        q, squares, *q.stride()[:3], heads, tokens,
        WIDTH=constants["WIDTH"], COLUMNS=constants["COLUMNS"], ROWS=ROWS,
    )  # fmt: skip
    return squares


def _gradient_parts(
    out: Tensor, rest: Tensor, grad: Tensor, share: Tensor | None, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `grad` times share and factor, <out_i, grad_i> of it, and a zero a head.

    Without `share` the gradient is left as it is, and the zeros are not written.
    """
    batch, heads, tokens, _ = out.shape
    out = out.transpose(1, 2).contiguous()
    rest = rest if rest.numel() == 0 else rest.transpose(1, 2).contiguous()
    delta = grad.new_empty((batch, heads, tokens), dtype=torch.float32)
    shared = grad if share is None else tokens_first(grad)
    arrived = grad.new_empty((batch, heads), dtype=torch.int32)
    constants = constants_of(grad)
    run(
        tied_backward.gradient_kernel,
        batch * heads * -(-tokens // ROWS),
        out, rest, grad, delta if share is None else share, shared, delta, arrived,
        *grad.stride()[:3], heads, tokens, factor,
        WIDTH=constants["WIDTH"], COLUMNS=constants["COLUMNS"], ROWS=ROWS,
        HAS_REST=rest.numel() > 0, SHARED=share is not None,
    )  # fmt: skip
    return shared, delta, arrived


def _is_short(q: Tensor) -> bool:
    """Return whether a head is so small that one program should add the slope; a pass of its own costs more."""
    return q.shape[-2] * q.shape[-1] <= SHORT_ELEMENTS


def _rest(v: Tensor, has_backward: bool) -> Tensor:
    """Return room for what rounding takes from the output; none where nothing is rounded or asked for."""
    if has_backward and v.element_size() == 2:
        return tokens_first(v)
    return v.new_empty((v.shape[0], 0))


def _per_token(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[:3], dtype=torch.float32)
