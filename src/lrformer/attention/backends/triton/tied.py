r"""Triton kernels for tied queries and keys, softmax(-c ||q_i - q_j||^2) v.

With q = k the weights are those of a Gaussian kernel, :math:`P_{ij}=K_{ij}/D_i` with
:math:`K_{ij}=e^{-c\|q_i-q_j\|^2}\le 1` and :math:`D_i=\sum_j K_{ij}\ge K_{ii}=1`. So no running maximum is
needed; what symmetry is good for is in `tied_backward`.

Scores are in base 2. The bias :math:`c\|q_j\|^2` stays in float32, and products of 16-bit numbers are
exact there, so nothing has to be centered. The loop runs over whole blocks without a mask; what is left
is one smaller block, in which a token beyond the last has a bias of infinity: weight zero.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def coefficient_of(coefficient_ptr, slot, squares_base):
    """Return c, but never zero, and at most 2^24 / ||k_1||^2.

    Zero times the infinite bias of a token beyond the last is no number. Above the bound the rounding of
    the norms alone would decide the weights, and overflow them: c is alpha / eps where a sample is blank,
    and its tokens, all equal to the bias of the projection, need not be zero.
    """
    coefficient = tl.load(coefficient_ptr + slot)
    first = tl.load(squares_base)
    bound = 16777216.0 / tl.where((first > 1.0e-30) & (first < float("inf")), first, 1.0e-30)
    coefficient = tl.where(coefficient > bound, bound, coefficient)
    return tl.where(tl.abs(coefficient) < 1.0e-30, 1.0e-30, coefficient)


@triton.jit
def block_of(base, rows, columns, token, num_tokens, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Return the rows of a matrix of tokens, zeros beyond its end."""
    pointers = base + rows[:, None] * token + columns[None, :]
    if MASKED:
        inside = (rows[:, None] < num_tokens) & (columns[None, :] < WIDTH)
        return tl.load(pointers, mask=inside, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def numbers_of(base, rows, num_tokens, BEYOND: tl.constexpr, MASKED: tl.constexpr):
    """Return one number a token, BEYOND after the last."""
    if MASKED:
        return tl.load(base + rows, mask=rows < num_tokens, other=BEYOND)
    else:
        return tl.load(base + rows)


@triton.jit
def squares_kernel(
    q_ptr, squares_ptr,
    q_batch, q_head, q_token,
    num_heads, num_tokens,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write ||q_i||^2 of every token, one program for a block of rows."""
    num_blocks = tl.cdiv(num_tokens, ROWS)
    slot = (tl.program_id(0) // num_blocks).to(tl.int64)
    rows = tl.program_id(0) % num_blocks * ROWS + tl.arange(0, ROWS)
    base = q_ptr + slot // num_heads * q_batch + slot % num_heads * q_head
    q = block_of(base, rows, tl.arange(0, COLUMNS), q_token, num_tokens, WIDTH, True).to(tl.float32)
    tl.store(squares_ptr + slot * num_tokens + rows, tl.sum(q * q, 1), mask=rows < num_tokens)


@triton.jit
def anchor_of(base, columns, token, num_tokens, WIDTH: tl.constexpr):
    """Return the mean of the first tokens, a vector that is near all of them if they share a part."""
    first = block_of(base, tl.arange(0, 16), columns, token, num_tokens, WIDTH, True).to(tl.float32)
    return tl.sum(first, 0) / tl.minimum(num_tokens, 16)


@triton.jit
def forward_step(
    total, averaged, q_i, bias_i, q_base, v_base, squares_base, scale, start,
    q_token, v_token, num_tokens, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the sums of weights and of weighted values with one more block of keys."""
    rows = start + tl.arange(0, BLOCK)
    columns = tl.arange(0, COLUMNS)
    q_j = block_of(q_base, rows, columns, q_token, num_tokens, WIDTH, MASKED or COLUMNS != WIDTH)
    v_j = block_of(v_base, rows, columns, v_token, num_tokens, WIDTH, MASKED or COLUMNS != WIDTH)
    bias_j = scale * numbers_of(squares_base, rows, num_tokens, float("inf"), MASKED)
    product = tl.dot(q_i, tl.trans(q_j), input_precision=PRECISION)
    kernel = tl.exp2(product * (2 * scale) - (bias_i[:, None] + bias_j[None, :]))
    total += tl.sum(kernel, 1)
    averaged = tl.dot(kernel.to(v_j.dtype), v_j, averaged, input_precision=PRECISION)
    return total, averaged


@triton.jit
def forward_rows(
    q_ptr, v_ptr, coefficient_ptr, squares_ptr, out_ptr, rest_ptr, share_ptr,
    q_batch, q_head, q_token, v_batch, v_head, v_token,
    num_heads, num_tokens, slot, first,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, HAS_REST: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Write what `forward_kernel` does for ROWS queries of one head, from `first` on."""
    batch, head = slot // num_heads, slot % num_heads
    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)

    q_base = q_ptr + batch * q_batch + head * q_head
    v_base = v_ptr + batch * v_batch + head * v_head
    squares_base = squares_ptr + slot * num_tokens
    scale = coefficient_of(coefficient_ptr, slot, squares_base) * LOG2_E
    q_i = block_of(q_base, rows, columns, q_token, num_tokens, WIDTH, True)
    bias_i = scale * numbers_of(squares_base, rows, num_tokens, 0.0, True)

    total = tl.zeros([ROWS], tl.float32)
    averaged = tl.zeros([ROWS, COLUMNS], tl.float32)
    whole = num_tokens // BLOCK_N * BLOCK_N
    for start in tl.range(0, whole, BLOCK_N):
        total, averaged = forward_step(
            total, averaged, q_i, bias_i, q_base, v_base, squares_base, scale, start,
            q_token, v_token, num_tokens, WIDTH, COLUMNS, PRECISION, BLOCK_N, False,
        )  # fmt: skip
    if TAIL > 0:
        total, averaged = forward_step(
            total, averaged, q_i, bias_i, q_base, v_base, squares_base, scale, whole,
            q_token, v_token, num_tokens, WIDTH, COLUMNS, PRECISION, TAIL, True,
        )  # fmt: skip

    share = 1 / tl.where(total > 0, total, 1.0)  # a row beyond the last may see nothing
    inside = (rows[:, None] < num_tokens) & (columns[None, :] < WIDTH)
    out = averaged * share[:, None]
    rounded = out.to(out_ptr.dtype.element_ty)
    offsets = (batch * num_tokens * num_heads + rows[:, None] * num_heads + head) * WIDTH
    offsets += columns[None, :]
    tl.store(out_ptr + offsets, rounded, mask=inside)
    if HAS_REST:
        rest = (out - rounded.to(tl.float32)).to(rest_ptr.dtype.element_ty)
        tl.store(rest_ptr + offsets, rest, mask=inside)
    tl.store(share_ptr + slot * num_tokens + rows, share, mask=rows < num_tokens)


@triton.jit
def forward_kernel(
    q_ptr, v_ptr, coefficient_ptr, squares_ptr, out_ptr, rest_ptr, share_ptr,
    q_batch, q_head, q_token, v_batch, v_head, v_token,
    num_heads, num_tokens, bucket,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, HAS_REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TAIL: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Write the averaged values, laid out (b, n, h, d), and 1/D_i, one program for a block of queries.

    Where HAS_REST, what rounding took from the averaged values is written too, for the backward pass. The
    last block of a head computes LAST rows, where fewer than BLOCK_M hold those that are left.
    """
    num_blocks = tl.cdiv(num_tokens, BLOCK_M)
    slot = (tl.program_id(0) // num_blocks).to(tl.int64)
    block = tl.program_id(0) % num_blocks
    if LAST < BLOCK_M and block == num_blocks - 1:
        forward_rows(
            q_ptr, v_ptr, coefficient_ptr, squares_ptr, out_ptr, rest_ptr, share_ptr,
            q_batch, q_head, q_token, v_batch, v_head, v_token,
            num_heads, num_tokens, slot, block * BLOCK_M,
            WIDTH, COLUMNS, PRECISION, HAS_REST, LAST, BLOCK_N, TAIL,
        )  # fmt: skip
    else:
        forward_rows(
            q_ptr, v_ptr, coefficient_ptr, squares_ptr, out_ptr, rest_ptr, share_ptr,
            q_batch, q_head, q_token, v_batch, v_head, v_token,
            num_heads, num_tokens, slot, block * BLOCK_M,
            WIDTH, COLUMNS, PRECISION, HAS_REST, BLOCK_M, BLOCK_N, TAIL,
        )  # fmt: skip
