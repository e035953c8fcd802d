"""One tile of keys and values entered into a running softmax: the inside of both kernels of attention.

Scores are kept in base 2. `rope`: a second part of query and key, as a latent cache has it (its values are the first
part of its keys). A row that has seen no key yet has the maximum -inf, which must not reach an exponent.
"""

from __future__ import annotations

import triton
import triton.language as tl

from calibration.engine.kernels.rows import tanh

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def enter(
    total, peak, sums, query, query_rope, pool, table, tokens, visible, head_offset, value_offset, scale,
    TOKEN: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    ROPE: tl.constexpr, BLOCK_ROPE: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """(total, peak, sums) after the keys of `tokens` [TILE]; `visible` [rows, TILE] says who sees which, and a
    token that no row sees is not read."""
    read = tl.max(visible.to(tl.int32), axis=0) > 0
    page = tl.load(table + tokens // PAGE, mask=read, other=0).to(tl.int64)
    place = (page * PAGE + tokens % PAGE) * TOKEN + head_offset
    width = tl.arange(0, BLOCK_WIDTH)
    here = width < WIDTH
    key = tl.load(pool + place[None, :] + width[:, None], mask=read[None, :] & here[:, None], other=0.0)
    scores = tl.dot(query, key, input_precision="ieee")
    if ROPE > 0:
        turned = tl.arange(0, BLOCK_ROPE)
        mask = read[None, :] & (turned < ROPE)[:, None]
        rope = tl.load(pool + place[None, :] + WIDTH + turned[:, None], mask=mask, other=0.0)
        scores += tl.dot(query_rope, rope, input_precision="ieee")
    scores = scores * scale
    if CAP > 0:
        scores = CAP * tanh(scores / CAP)
    scores = tl.where(visible, scores * LOG2_E, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    shrink = tl.exp2(peak - base)
    shares = tl.exp2(scores - base[:, None])
    value = tl.load(
        pool + place[:, None] + value_offset + width[None, :], mask=read[:, None] & here[None, :], other=0.0
    )
    total = total * shrink[:, None] + tl.dot(shares.to(value.dtype), value, input_precision="ieee")
    sums = sums * shrink + tl.sum(shares, axis=1)
    return total, higher, sums
