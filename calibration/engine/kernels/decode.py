"""Attention of decode rows: one query token each, over pages, the row's keys split among programs (split-KV).

At small batches there are fewer (row, KV head) pairs than multiprocessors, and one program a pair would leave most of
the memory bandwidth idle; so a row's keys are dealt to `splits` programs, whose sums a second kernel combines. All
query heads of a KV head share a program: its keys are read once for them. Grids do not depend on the contexts,
so a captured graph holds for any: a split beyond a row's end, and a padded row (length 0), read nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from calibration.engine.kernels.softmax import enter

TILE = 64
LEAST_HEADS = 16  # rows of a matrix instruction
PROGRAMS_PER_PROCESSOR = 4
MOST_SPLITS = 32


@triton.jit
def _decode(
    queries, pool, tables, lengths, partial, peaks, scale, table_stride, query_stride, value_offset,
    WINDOW: tl.constexpr, CAP: tl.constexpr, GROUP: tl.constexpr, HEAD_BLOCKS: tl.constexpr, HEADS: tl.constexpr,
    SPLITS: tl.constexpr, TOKEN: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr, ROPE: tl.constexpr, BLOCK_ROPE: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1) // HEAD_BLOCKS
    split = tl.program_id(2)
    inner = (tl.program_id(1) % HEAD_BLOCKS) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    head = kv_head * GROUP + inner
    owned = inner < GROUP
    width = tl.arange(0, BLOCK_WIDTH)
    source = queries + row * query_stride + head[:, None] * (WIDTH + ROPE)
    query = tl.load(source + width[None, :], mask=owned[:, None] & (width < WIDTH)[None, :], other=0.0)
    query_rope = query
    if ROPE > 0:
        turned = tl.arange(0, BLOCK_ROPE)
        mask = owned[:, None] & (turned < ROPE)[None, :]
        query_rope = tl.load(source + WIDTH + turned[None, :], mask=mask, other=0.0)
    length = tl.load(lengths + row)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(0, length - WINDOW)
    each = tl.cdiv(tl.cdiv(length - start, SPLITS), TILE) * TILE
    first = start + split * each
    end = tl.minimum(first + each, length)
    total = tl.zeros([BLOCK_HEADS, BLOCK_WIDTH], dtype=tl.float32)
    peak = tl.full([BLOCK_HEADS], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_HEADS], dtype=tl.float32)
    for begin in range(first, end, TILE):
        tokens = begin + tl.arange(0, TILE)
        visible = (tokens < end)[None, :] & (inner >= 0)[:, None]
        total, peak, sums = enter(
            total, peak, sums, query, query_rope, pool, tables + row * table_stride, tokens, visible,
            kv_head * WIDTH, value_offset, scale,
            TOKEN, PAGE, WIDTH, BLOCK_WIDTH, ROPE, BLOCK_ROPE, CAP,
        )  # fmt: skip
    place = (row * HEADS + head) * SPLITS + split
    some = tl.where(sums > 0, sums, 1.0)
    out = partial + place[:, None] * WIDTH + width[None, :]
    tl.store(out, total / some[:, None], mask=owned[:, None] & (width < WIDTH)[None, :])
    tl.store(peaks + place, tl.where(sums > 0, peak + tl.log2(some), float("-inf")), mask=owned)


@triton.jit
def _combine(partial, peaks, out, SPLITS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    place = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * SPLITS
    split = tl.arange(0, SPLITS)
    width = tl.arange(0, BLOCK_WIDTH)
    weight = tl.load(peaks + place + split)
    highest = tl.max(weight, axis=0)
    weight = tl.exp2(weight - tl.where(highest == float("-inf"), 0.0, highest))
    weight = weight / tl.maximum(tl.sum(weight, axis=0), 1e-30)
    source = partial + (place + split)[:, None] * WIDTH + width[None, :]
    sums = tl.load(source, mask=(width < WIDTH)[None, :], other=0.0)
    result = tl.sum(sums * weight[:, None], axis=0)
    at = out + (place // SPLITS) * WIDTH + width
    tl.store(at, result, mask=width < WIDTH)


def splits_for(rows: int, kv_programs: int, processors: int) -> int:
    """Programs among which each row's keys are dealt, a power of two: enough to fill the processors."""
    wanted = PROGRAMS_PER_PROCESSOR * processors // max(1, rows * kv_programs)
    return max(1, min(MOST_SPLITS, 1 << (wanted.bit_length() - 1) if wanted else 1))


def attend_decodes(
    queries: torch.Tensor,
    pool: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    cap: float,
    rank: int,
    processors: int,
) -> None:
    """Fills out [rows, heads, value width] for queries [rows, heads, width], one a row.

    lengths: tokens of each row in the pool, the new one included. rank: 0, or a latent pool's, whose values are
    the first `rank` elements of its keys.
    """
    rows, heads, query_width = queries.shape
    kv_heads = 1 if rank else pool.shape[3]
    width, rope = (rank, query_width - rank) if rank else (query_width, 0)
    group = heads // kv_heads
    block_heads = min(64, max(LEAST_HEADS, triton.next_power_of_2(group)))
    head_blocks = triton.cdiv(group, block_heads)
    splits = splits_for(rows, kv_heads * head_blocks, processors)
    partial = torch.empty(rows, heads, splits, width, dtype=torch.float32, device=queries.device)
    peaks = torch.empty(rows, heads, splits, dtype=torch.float32, device=queries.device)
    block_width = triton.next_power_of_2(width)
    _decode[(rows, kv_heads * head_blocks, splits)](
        queries, pool, tables, lengths, partial, peaks, scale, tables.stride(0), queries.stride(0),
        0 if rank else kv_heads * width,
        WINDOW=window or 0, CAP=cap, GROUP=group, HEAD_BLOCKS=head_blocks, HEADS=heads, SPLITS=splits,
        TOKEN=pool.stride(1), PAGE=pool.shape[1], WIDTH=width, BLOCK_WIDTH=max(16, block_width), ROPE=rope,
        BLOCK_ROPE=max(16, triton.next_power_of_2(rope)) if rope else 16, BLOCK_HEADS=block_heads,
        TILE=TILE if width <= 256 else 32, num_warps=4 if width <= 256 else 8, num_stages=2,
    )  # fmt: skip
    _combine[(rows, heads)](
        partial, peaks, out, SPLITS=splits, WIDTH=width, BLOCK_WIDTH=max(16, block_width), num_warps=4
    )
