r"""Triton kernels for queries and keys of their own, softmax(-c ||q_i - k_j||^2) v, with padding.

Up to a constant in j the score is :math:`2c\langle q_i,k_j\rangle-c\|k_j\|^2`, in base 2, under a running
maximum. The bias is read in float32; a padded key has a bias of infinity and so the weight zero. The
backward pass is two kernels, one that owns keys and one that owns queries: no atomic additions.
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


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, coefficient_ptr, squares_ptr, out_ptr, rest_ptr, level_ptr,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    num_heads, num_tokens, bucket,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, HAS_REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the averaged values, laid out (b, n, h, d), and log2 of the sum of exponentials of each row.

    Where HAS_REST, what rounding took from the averaged values is written too, for the backward pass.
    """
    num_blocks = tl.cdiv(num_tokens, BLOCK_M)
    slot = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch, head = slot // num_heads, slot % num_heads
    rows = tl.program_id(0) % num_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, COLUMNS)
    row_inside = rows < num_tokens
    inside = row_inside[:, None] & (columns[None, :] < WIDTH)

    q_base = q_ptr + batch * q_batch + head * q_head
    k_base = k_ptr + batch * k_batch + head * k_head
    v_base = v_ptr + batch * v_batch + head * v_head
    squares_base = squares_ptr + slot * num_tokens
    scale = coefficient_of(coefficient_ptr, slot, squares_base) * LOG2_E
    q_i = block_of(q_base, rows, columns, q_token, num_tokens, WIDTH, True)

    largest = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    averaged = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    for start in tl.range(0, num_tokens, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k_j = block_of(k_base, keys, columns, k_token, num_tokens, WIDTH, True)
        v_j = block_of(v_base, keys, columns, v_token, num_tokens, WIDTH, True)
        bias_j = scale * numbers_of(squares_base, keys, num_tokens, float("inf"), True)
        product = tl.dot(q_i, tl.trans(k_j), input_precision=PRECISION)
        score = product * (2 * scale) - bias_j[None, :]
        grown = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp2(score - grown[:, None])
        shrink = tl.exp2(largest - grown)
        total = total * shrink + tl.sum(weight, 1)
        averaged = tl.dot(
            weight.to(v_j.dtype), v_j, averaged * shrink[:, None], input_precision=PRECISION
        )
        largest = grown

    total = tl.where(total > 0, total, 1.0)  # a sample that is all padding: zeros
    out = averaged / total[:, None]
    rounded = out.to(out_ptr.dtype.element_ty)
    offsets = (batch * num_tokens * num_heads + rows[:, None] * num_heads + head) * WIDTH
    offsets += columns[None, :]
    tl.store(out_ptr + offsets, rounded, mask=inside)
    if HAS_REST:
        rest = (out - rounded.to(tl.float32)).to(rest_ptr.dtype.element_ty)
        tl.store(rest_ptr + offsets, rest, mask=inside)
    tl.store(level_ptr + slot * num_tokens + rows, largest + tl.log2(total), mask=row_inside)


@triton.jit
def backward_keys_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, coefficient_ptr, squares_ptr, level_ptr, delta_ptr,
    grad_k_ptr, grad_v_ptr, grad_c_ptr,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    grad_batch, grad_head, grad_token,
    num_heads, num_tokens, bucket,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a block of keys and values, and their part of that of c."""
    num_blocks = tl.cdiv(num_tokens, BLOCK_M)
    slot = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch, head = slot // num_heads, slot % num_heads
    keys = tl.program_id(0) % num_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, COLUMNS)
    key_inside = keys < num_tokens
    inside = key_inside[:, None] & (columns[None, :] < WIDTH)

    q_base = q_ptr + batch * q_batch + head * q_head
    k_base = k_ptr + batch * k_batch + head * k_head
    v_base = v_ptr + batch * v_batch + head * v_head
    grad_base = grad_ptr + batch * grad_batch + head * grad_head
    squares_base = squares_ptr + slot * num_tokens
    coefficient = coefficient_of(coefficient_ptr, slot, squares_base)
    scale = coefficient * LOG2_E
    k_j = block_of(k_base, keys, columns, k_token, num_tokens, WIDTH, True)
    v_j = block_of(v_base, keys, columns, v_token, num_tokens, WIDTH, True)
    squares_j = numbers_of(squares_base, keys, num_tokens, float("inf"), True)
    bias_j = scale * squares_j

    grad_v = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    pulled = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    pull = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, num_tokens, BLOCK_N):
        rows = start + tl.arange(0, BLOCK_N)
        q_i = block_of(q_base, rows, columns, q_token, num_tokens, WIDTH, True)
        grad_i = block_of(grad_base, rows, columns, grad_token, num_tokens, WIDTH, True)
        level_i = numbers_of(level_ptr + slot * num_tokens, rows, num_tokens, float("inf"), True)
        delta_i = numbers_of(delta_ptr + slot * num_tokens, rows, num_tokens, 0.0, True)
        product = tl.dot(k_j, tl.trans(q_i), input_precision=PRECISION)
        reading = tl.dot(v_j, tl.trans(grad_i), input_precision=PRECISION)
        weight = tl.exp2(product * (2 * scale) - bias_j[:, None] - level_i[None, :])
        grad_v = tl.dot(weight.to(grad_i.dtype), grad_i, grad_v, input_precision=PRECISION)
        rounded = (weight * (reading - delta_i[None, :])).to(q_i.dtype)
        pull += tl.sum(rounded.to(tl.float32), 1)
        pulled = tl.dot(rounded, q_i, pulled, input_precision=PRECISION)

    k_wide = k_j.to(tl.float32)
    pulled -= pull[:, None] * k_wide
    anchor = anchor_of(k_base, columns, k_token, num_tokens, WIDTH)
    grad_c = tl.sum(pulled * (k_wide - anchor[None, :]), 1)
    tl.store(grad_c_ptr + slot * num_tokens + keys, grad_c, mask=key_inside)
    offsets = (batch * num_tokens * num_heads + keys[:, None] * num_heads + head) * WIDTH
    offsets += columns[None, :]
    grad_k = pulled * (2 * coefficient)
    tl.store(grad_k_ptr + offsets, grad_k.to(grad_k_ptr.dtype.element_ty), mask=inside)
    tl.store(grad_v_ptr + offsets, grad_v.to(grad_v_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_queries_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, coefficient_ptr, squares_ptr, level_ptr, delta_ptr,
    grad_q_ptr, grad_c_ptr,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    grad_batch, grad_head, grad_token,
    num_heads, num_tokens, bucket,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a block of queries, and its part of that of c.

    The gradients of a row's scores sum to zero, so any vector may be taken off the keys: with one that
    they share, what rounding does to that sum meets small numbers.
    """
    num_blocks = tl.cdiv(num_tokens, BLOCK_M)
    slot = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch, head = slot // num_heads, slot % num_heads
    rows = tl.program_id(0) % num_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, COLUMNS)
    row_inside = rows < num_tokens
    inside = row_inside[:, None] & (columns[None, :] < WIDTH)

    q_base = q_ptr + batch * q_batch + head * q_head
    k_base = k_ptr + batch * k_batch + head * k_head
    v_base = v_ptr + batch * v_batch + head * v_head
    grad_base = grad_ptr + batch * grad_batch + head * grad_head
    squares_base = squares_ptr + slot * num_tokens
    coefficient = coefficient_of(coefficient_ptr, slot, squares_base)
    scale = coefficient * LOG2_E
    q_i = block_of(q_base, rows, columns, q_token, num_tokens, WIDTH, True)
    grad_i = block_of(grad_base, rows, columns, grad_token, num_tokens, WIDTH, True)
    level_i = numbers_of(level_ptr + slot * num_tokens, rows, num_tokens, float("inf"), True)
    delta_i = numbers_of(delta_ptr + slot * num_tokens, rows, num_tokens, 0.0, True)

    pulled = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    pull = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, num_tokens, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k_j = block_of(k_base, keys, columns, k_token, num_tokens, WIDTH, True)
        v_j = block_of(v_base, keys, columns, v_token, num_tokens, WIDTH, True)
        squares_j = numbers_of(squares_base, keys, num_tokens, float("inf"), True)
        product = tl.dot(q_i, tl.trans(k_j), input_precision=PRECISION)
        reading = tl.dot(grad_i, tl.trans(v_j), input_precision=PRECISION)
        weight = tl.exp2(product * (2 * scale) - scale * squares_j[None, :] - level_i[:, None])
        rounded = (weight * (reading - delta_i[:, None])).to(k_j.dtype)
        pull += tl.sum(rounded.to(tl.float32), 1)
        pulled = tl.dot(rounded, k_j, pulled, input_precision=PRECISION)

    anchor = anchor_of(k_base, columns, k_token, num_tokens, WIDTH)
    pulled -= pull[:, None] * anchor[None, :]
    grad_c = tl.sum(pulled * (q_i.to(tl.float32) - anchor[None, :]), 1)
    tl.store(grad_c_ptr + slot * num_tokens + rows, grad_c, mask=row_inside)
    offsets = (batch * num_tokens * num_heads + rows[:, None] * num_heads + head) * WIDTH
    grad_q = pulled * (2 * coefficient)
    tl.store(
        grad_q_ptr + offsets + columns[None, :], grad_q.to(grad_q_ptr.dtype.element_ty), mask=inside
    )
