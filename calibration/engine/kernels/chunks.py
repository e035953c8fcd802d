"""Attention of rows with any number of query tokens over pages: prefill chunks, and in a unified mixed step decodes.

A tile is some query tokens of one row with some query heads of one KV head: together the rows of a matrix
instruction, so that keys read once serve all of them. The host lists the tiles (plan.py); a tile reads the row's keys
up to its own last query, and with a window from its first query's window on. A decode row is a tile with one
query whose keys one program reads alone: dearer than a split row, as in serving engines that attend in one kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from calibration.engine.kernels.softmax import enter

TILE = 64
TILE_ROWS = 64  # query tokens x query heads


@triton.jit
def _chunks(
    queries, pool, tables, lengths, starts, tile_rows, tile_firsts, out, scale, table_stride, query_stride,
    value_offset,
    WINDOW: tl.constexpr, CAP: tl.constexpr, GROUP: tl.constexpr, HEAD_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr, TOKEN: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr, ROPE: tl.constexpr, BLOCK_ROPE: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.load(tile_rows + tl.program_id(0)).to(tl.int64)
    first = tl.load(tile_firsts + tl.program_id(0))
    kv_head = tl.program_id(1) // HEAD_BLOCKS
    at = tl.arange(0, ROWS)
    inner = (tl.program_id(1) % HEAD_BLOCKS) * BLOCK_HEADS + at % BLOCK_HEADS
    start = tl.load(starts + row)
    count = tl.load(starts + row + 1) - start
    length = tl.load(lengths + row)
    cached = length - count
    index = first + at // BLOCK_HEADS  # of the query token in its row
    owned = (index < count) & (inner < GROUP)
    head = kv_head * GROUP + inner
    width = tl.arange(0, BLOCK_WIDTH)
    source = queries + (start + index).to(tl.int64)[:, None] * query_stride + head[:, None] * (WIDTH + ROPE)
    query = tl.load(source + width[None, :], mask=owned[:, None] & (width < WIDTH)[None, :], other=0.0)
    query_rope = query
    if ROPE > 0:
        turned = tl.arange(0, BLOCK_ROPE)
        mask = owned[:, None] & (turned < ROPE)[None, :]
        query_rope = tl.load(source + WIDTH + turned[None, :], mask=mask, other=0.0)
    position = cached + index
    low = 0
    if WINDOW > 0:
        low = tl.maximum(0, cached + first + 1 - WINDOW) // TILE * TILE
    high = tl.minimum(length, cached + first + ROWS // BLOCK_HEADS)
    total = tl.zeros([ROWS, BLOCK_WIDTH], dtype=tl.float32)
    peak = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([ROWS], dtype=tl.float32)
    for begin in range(low, high, TILE):
        tokens = begin + tl.arange(0, TILE)
        visible = (tokens[None, :] <= position[:, None]) & (tokens < high)[None, :]
        if WINDOW > 0:
            visible &= tokens[None, :] > position[:, None] - WINDOW
        total, peak, sums = enter(
            total, peak, sums, query, query_rope, pool, tables + row * table_stride, tokens, visible,
            kv_head * WIDTH, value_offset, scale,
            TOKEN, PAGE, WIDTH, BLOCK_WIDTH, ROPE, BLOCK_ROPE, CAP,
        )  # fmt: skip
    some = tl.where(sums > 0, sums, 1.0)
    place = out + ((start + index).to(tl.int64)[:, None] * HEADS + head[:, None]) * WIDTH + width[None, :]
    tl.store(place, total / some[:, None], mask=owned[:, None] & (width < WIDTH)[None, :])


def heads_of_tile(heads: int, kv_heads: int) -> int:
    """Query heads of one tile, a power of two."""
    return min(TILE_ROWS, int(triton.next_power_of_2(heads // kv_heads)))


def queries_of_tile(heads: int, kv_heads: int) -> int:
    """Query tokens of one tile."""
    return TILE_ROWS // heads_of_tile(heads, kv_heads)


def attend_chunks(
    queries: torch.Tensor,
    pool: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    tiles: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    cap: float,
    rank: int,
) -> None:
    """Fills out [n, heads, value width] for queries [n, heads, width] of the rows that the tiles name.

    starts: first query token of each row, and the end of the last. tiles: (row, first query token in it) each.
    """
    heads, query_width = queries.shape[1:]
    kv_heads = 1 if rank else pool.shape[3]
    width, rope = (rank, query_width - rank) if rank else (query_width, 0)
    group = heads // kv_heads
    block_heads = heads_of_tile(heads, kv_heads)
    head_blocks = triton.cdiv(group, block_heads)
    _chunks[(len(tiles[0]), kv_heads * head_blocks)](
        queries, pool, tables, lengths, starts, tiles[0], tiles[1], out, scale, tables.stride(0),
        queries.stride(0), 0 if rank else kv_heads * width,
        WINDOW=window or 0, CAP=cap, GROUP=group, HEAD_BLOCKS=head_blocks, HEADS=heads, TOKEN=pool.stride(1),
        PAGE=pool.shape[1], WIDTH=width, BLOCK_WIDTH=max(16, triton.next_power_of_2(width)), ROPE=rope,
        BLOCK_ROPE=max(16, triton.next_power_of_2(rope)) if rope else 16, BLOCK_HEADS=block_heads,
        ROWS=TILE_ROWS, TILE=TILE if width <= 128 else 32, num_warps=4 if width <= 128 else 8, num_stages=2,
    )  # fmt: skip
