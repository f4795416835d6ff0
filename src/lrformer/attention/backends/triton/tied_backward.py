r"""The backward pass of the kernels in `tied`, and what c gives back to q.

The Gaussian kernel K is symmetric. So one program that owns a block of rows holds everything that its rows
get: the weights with which they were read (:math:`K_{ij}/D_j`) and with which they read
(:math:`K_{ij}/D_i`). Five products and one exponential a pair, and no sum that atomics make: the only atomic
operation counts the programs of a head that are done.
"""

import triton
import triton.language as tl

from lrformer.attention.backends.triton.tied import (
    LOG2_E,
    anchor_of,
    block_of,
    coefficient_of,
    numbers_of,
)

SLOPE_ELEMENTS = tl.constexpr(16384)  # of q in one step of the last program of a head


@triton.jit
def gradient_kernel(
    out_ptr, rest_ptr, grad_ptr, share_ptr, shared_ptr, delta_ptr, arrived_ptr,
    grad_batch, grad_head, grad_token,
    num_heads, num_tokens, factor,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    HAS_REST: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write <out_i, g_i>; where SHARED, both this and g_i times factor / D_i, g laid out as out is.

    The output must not lose digits here, and the gradient must be the rounded one that the products see:
    a part that all values share cancels in <g_i, v_j - out_i>, and only then. Where SHARED, the programs of
    a head that are done in `backward_kernel` are set to none.
    """
    num_blocks = tl.cdiv(num_tokens, ROWS)
    slot = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch, head = slot // num_heads, slot % num_heads
    rows = tl.program_id(0) % num_blocks * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows[:, None] < num_tokens) & (columns[None, :] < WIDTH)
    offsets = (batch * num_tokens * num_heads + rows[:, None] * num_heads + head) * WIDTH
    offsets += columns[None, :]
    out = tl.load(out_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    if HAS_REST:
        out += tl.load(rest_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    grad_base = grad_ptr + batch * grad_batch + head * grad_head
    grad = block_of(grad_base, rows, columns, grad_token, num_tokens, WIDTH, True)
    if SHARED:
        if tl.program_id(0) % num_blocks == 0:
            tl.store(arrived_ptr + slot, 0)
        share = factor * numbers_of(share_ptr + slot * num_tokens, rows, num_tokens, 0.0, True)
        grad = (grad.to(tl.float32) * share[:, None]).to(shared_ptr.dtype.element_ty)
        tl.store(shared_ptr + offsets, grad, mask=inside)
    delta = tl.sum(out * grad.to(tl.float32), 1)
    tl.store(delta_ptr + slot * num_tokens + rows, delta, mask=rows < num_tokens)


@triton.jit
def backward_step(
    grad_v, pulled, pull, q_i, v_i, shared_i, bias_i, delta_i,
    q_base, v_base, shared_base, squares_base, delta_base, scale, start,
    q_token, v_token, shared_token, num_tokens, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the gradients of the rows with one more block of tokens that they read and that read them."""
    rows = start + tl.arange(0, BLOCK)
    columns = tl.arange(0, COLUMNS)
    NARROW: tl.constexpr = MASKED or COLUMNS != WIDTH
    q_j = block_of(q_base, rows, columns, q_token, num_tokens, WIDTH, NARROW)
    v_j = block_of(v_base, rows, columns, v_token, num_tokens, WIDTH, NARROW)
    shared_j = block_of(shared_base, rows, columns, shared_token, num_tokens, WIDTH, NARROW)
    bias_j = scale * numbers_of(squares_base, rows, num_tokens, float("inf"), MASKED)
    delta_j = numbers_of(delta_base, rows, num_tokens, 0.0, MASKED)
    product = tl.dot(q_i, tl.trans(q_j), input_precision=PRECISION)
    moved = tl.dot(shared_i, tl.trans(v_j), input_precision=PRECISION)
    moved = tl.dot(v_i, tl.trans(shared_j), moved, input_precision=PRECISION)
    kernel = tl.exp2(product * (2 * scale) - (bias_i[:, None] + bias_j[None, :]))
    grad_v = tl.dot(kernel.to(shared_j.dtype), shared_j, grad_v, input_precision=PRECISION)
    moved -= delta_i[:, None] + delta_j[None, :]
    rounded = (kernel * moved).to(q_j.dtype)
    pull += tl.sum(rounded.to(tl.float32), 1)
    pulled = tl.dot(rounded, q_j, pulled, input_precision=PRECISION)
    return grad_v, pulled, pull


@triton.jit
def backward_rows(
    q_ptr, v_ptr, shared_ptr, coefficient_ptr, squares_ptr, delta_ptr,
    grad_q_ptr, grad_v_ptr, parts_ptr,
    q_batch, q_head, q_token, v_batch, v_head, v_token,
    num_heads, num_tokens, slot, first, factor,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    r"""Write the gradients of ROWS rows of q and v, from `first` on, and each row's part of that of c.

    With :math:`\tilde g_i=g_i/D_i`, :math:`\tilde\Delta_i=\Delta_i/D_i` and
    :math:`G_{ij}=K_{ij}[\langle\tilde g_i,v_j\rangle+\langle v_i,\tilde g_j\rangle-\tilde\Delta_i-\tilde\Delta_j]` the
    row gets :math:`2c\sum_j G_{ij}(q_j-q_i)`. The sum of G that multiplies q_i is that of the rounded
    numbers, so what rounding does meets the difference of the tokens, not the tokens. The gradient of c is
    :math:`\sum_{ij}G_{ij}\langle q_i-a,q_j-q_i\rangle` for any vector a, because these sums are zero without q.
    """
    batch, head = slot // num_heads, slot % num_heads
    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)

    q_base = q_ptr + batch * q_batch + head * q_head
    v_base = v_ptr + batch * v_batch + head * v_head
    shared_token = num_heads * WIDTH
    shared_base = shared_ptr + batch * num_tokens * shared_token + head * WIDTH
    squares_base = squares_ptr + slot * num_tokens
    delta_base = delta_ptr + slot * num_tokens
    coefficient = coefficient_of(coefficient_ptr, slot, squares_base)
    scale = coefficient * LOG2_E
    q_i = block_of(q_base, rows, columns, q_token, num_tokens, WIDTH, True)
    v_i = block_of(v_base, rows, columns, v_token, num_tokens, WIDTH, True)
    shared_i = block_of(shared_base, rows, columns, shared_token, num_tokens, WIDTH, True)
    bias_i = scale * numbers_of(squares_base, rows, num_tokens, 0.0, True)
    delta_i = numbers_of(delta_base, rows, num_tokens, 0.0, True)

    grad_v = tl.zeros([ROWS, COLUMNS], tl.float32)
    pulled = tl.zeros([ROWS, COLUMNS], tl.float32)
    pull = tl.zeros([ROWS], tl.float32)
    whole = num_tokens // BLOCK_N * BLOCK_N
    for start in tl.range(0, whole, BLOCK_N):
        grad_v, pulled, pull = backward_step(
            grad_v, pulled, pull, q_i, v_i, shared_i, bias_i, delta_i,
            q_base, v_base, shared_base, squares_base, delta_base, scale, start,
            q_token, v_token, shared_token, num_tokens, WIDTH, COLUMNS, PRECISION, BLOCK_N, False,
        )  # fmt: skip
    if TAIL > 0:
        grad_v, pulled, pull = backward_step(
            grad_v, pulled, pull, q_i, v_i, shared_i, bias_i, delta_i,
            q_base, v_base, shared_base, squares_base, delta_base, scale, whole,
            q_token, v_token, shared_token, num_tokens, WIDTH, COLUMNS, PRECISION, TAIL, True,
        )  # fmt: skip

    q_wide = q_i.to(tl.float32)
    pulled = (pulled - pull[:, None] * q_wide) / factor
    anchor = anchor_of(q_base, columns, q_token, num_tokens, WIDTH)
    parts = tl.sum(pulled * (q_wide - anchor[None, :]), 1)
    tl.store(parts_ptr + slot * num_tokens + rows, parts, mask=rows < num_tokens)
    inside = (rows[:, None] < num_tokens) & (columns[None, :] < WIDTH)
    offsets = (batch * num_tokens * num_heads + rows[:, None] * num_heads + head) * WIDTH
    offsets += columns[None, :]
    grad_q = pulled * (2 * coefficient)
    tl.store(grad_q_ptr + offsets, grad_q.to(grad_q_ptr.dtype.element_ty), mask=inside)
    grad_v = grad_v / factor
    tl.store(grad_v_ptr + offsets, grad_v.to(grad_v_ptr.dtype.element_ty), mask=inside)


@triton.jit
def sum_of(base, count, BLOCK: tl.constexpr):
    """Return the sum of numbers that other programs wrote: read past the cache of this one's processor."""
    sums = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, count, BLOCK):
        places = start + tl.arange(0, BLOCK)
        sums += tl.load(base + places, mask=places < count, other=0.0, cache_modifier=".cg")
    return tl.sum(sums, 0)


@triton.jit
def add_slope(
    q_ptr, grad_q_ptr, weight, q_batch, q_head, q_token, num_heads, num_tokens, slot, first,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add weight times q to ROWS rows of its gradient, which other programs wrote, from `first` on."""
    batch, head = slot // num_heads, slot % num_heads
    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    q_base = q_ptr + batch * q_batch + head * q_head
    q = block_of(q_base, rows, columns, q_token, num_tokens, WIDTH, True)
    inside = (rows[:, None] < num_tokens) & (columns[None, :] < WIDTH)
    offsets = (batch * num_tokens * num_heads + rows[:, None] * num_heads + head) * WIDTH
    places = grad_q_ptr + offsets + columns[None, :]
    grad_q = tl.load(places, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    grad_q += weight * q.to(tl.float32)
    tl.store(places, grad_q.to(grad_q_ptr.dtype.element_ty), mask=inside)


@triton.jit
def slope_kernel(
    q_ptr, slope_ptr, grad_c_ptr, grad_q_ptr, q_batch, q_head, q_token, num_heads, num_tokens,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add to the gradient of q what comes through c, one program for a block of rows."""
    num_blocks = tl.cdiv(num_tokens, ROWS)
    slot = (tl.program_id(0) // num_blocks).to(tl.int64)
    first = tl.program_id(0) % num_blocks * ROWS
    weight = tl.load(grad_c_ptr + slot) * tl.load(slope_ptr + slot)
    add_slope(
        q_ptr, grad_q_ptr, weight, q_batch, q_head, q_token, num_heads, num_tokens, slot, first,
        WIDTH, COLUMNS, ROWS,
    )  # fmt: skip


@triton.jit
def backward_kernel(
    q_ptr, v_ptr, shared_ptr, coefficient_ptr, slope_ptr, squares_ptr, delta_ptr, arrived_ptr,
    grad_q_ptr, grad_v_ptr, parts_ptr, grad_c_ptr,
    q_batch, q_head, q_token, v_batch, v_head, v_token,
    num_heads, num_tokens, bucket, factor,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, HAS_SLOPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TAIL: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Write the gradients of q and v, laid out (b, n, h, d), and of c.

    One program computes a block of rows; the one that is done last in a head adds up the gradient of c, in
    an order that does not depend on which one it is. Where HAS_SLOPE, c is a function of ||Q||, and it also
    adds the slope times that gradient times q to the gradient of q, while that is still in the cache.
    """
    num_blocks = tl.cdiv(num_tokens, BLOCK_M)
    slot = (tl.program_id(0) // num_blocks).to(tl.int64)
    block = tl.program_id(0) % num_blocks
    if LAST < BLOCK_M and block == num_blocks - 1:
        backward_rows(
            q_ptr, v_ptr, shared_ptr, coefficient_ptr, squares_ptr, delta_ptr,
            grad_q_ptr, grad_v_ptr, parts_ptr,
            q_batch, q_head, q_token, v_batch, v_head, v_token,
            num_heads, num_tokens, slot, block * BLOCK_M, factor,
            WIDTH, COLUMNS, PRECISION, LAST, BLOCK_N, TAIL,
        )  # fmt: skip
    else:
        backward_rows(
            q_ptr, v_ptr, shared_ptr, coefficient_ptr, squares_ptr, delta_ptr,
            grad_q_ptr, grad_v_ptr, parts_ptr,
            q_batch, q_head, q_token, v_batch, v_head, v_token,
            num_heads, num_tokens, slot, block * BLOCK_M, factor,
            WIDTH, COLUMNS, PRECISION, BLOCK_M, BLOCK_N, TAIL,
        )  # fmt: skip
    tl.debug_barrier()  # what all threads wrote comes before the count
    if tl.atomic_add(arrived_ptr + slot, 1) == num_blocks - 1:
        grad_c = sum_of(parts_ptr + slot * num_tokens, num_tokens, 256)
        tl.store(grad_c_ptr + slot, grad_c)
        if HAS_SLOPE:
            weight = grad_c * tl.load(slope_ptr + slot)
            for first in tl.range(0, num_tokens, SLOPE_ELEMENTS // COLUMNS):
                add_slope(
                    q_ptr, grad_q_ptr, weight, q_batch, q_head, q_token, num_heads, num_tokens,
                    slot, first, WIDTH, COLUMNS, SLOPE_ELEMENTS // COLUMNS,
                )  # fmt: skip
        tl.store(arrived_ptr + slot, 0)  # the tuner launches again and again
