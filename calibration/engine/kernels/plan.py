"""A step's index arrays for the kernels: fresh tensors for one step, or views of buffers that a graph reads.

Rows with one query token that come first (decodes) are attended to by the split kernel, all others by tiles; in a
unified step of both, everything goes by tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from calibration.engine.attention import token_places
from calibration.engine.batch import StepBatch, blocks_for, leading_decodes


@dataclass(frozen=True, slots=True)
class PagedPlan:
    token_ids: torch.Tensor  # int64 [n]
    positions: torch.Tensor  # int64 [n]
    slots: torch.Tensor  # int64 [n]; below 0 nothing is stored
    sampled: torch.Tensor  # int64 [S]
    tables: torch.Tensor  # int32 [rows, blocks]
    lengths: torch.Tensor  # int32 [rows], cached and new tokens; 0: a padded row
    starts: torch.Tensor  # int32 [rows + 1], first query token of each row
    tiles: tuple[torch.Tensor, torch.Tensor]  # int32 each: row, first query token in it
    decodes: int  # rows at the front that the split kernel attends to


def paged_plan(
    batch: StepBatch, block_tokens: int, device: torch.device, tile_queries: int, *, unified: bool
) -> PagedPlan:
    """A plan of tensors of its own. tile_queries: query tokens of one tile (chunks.queries_of_tile)."""
    positions, slots = token_places(batch, block_tokens)
    decodes = leading_decodes(batch)
    if unified and decodes < len(batch.block_tables):
        decodes = 0
    ends = np.cumsum(batch.query_tokens)
    tile_rows, tile_firsts = _tiles(batch.query_tokens, decodes, tile_queries)
    lengths = batch.cached_tokens + batch.query_tokens
    tables = np.zeros((len(lengths), blocks_for(int(lengths.max()), block_tokens)), dtype=np.int32)
    for row, table in zip(tables, batch.block_tables, strict=True):
        kept = table[: len(row)]
        row[: len(kept)] = kept

    def on(array: np.ndarray, kind: type[np.integer]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=kind)).to(device, non_blocking=True)

    return PagedPlan(
        token_ids=on(batch.token_ids, np.int64),
        positions=on(positions, np.int64),
        slots=on(slots, np.int64),
        sampled=on((ends - 1)[batch.sampled], np.int64),
        tables=on(tables, np.int32),
        lengths=on(lengths, np.int32),
        starts=on(np.concatenate(([0], ends)), np.int32),
        tiles=(on(tile_rows, np.int32), on(tile_firsts, np.int32)),
        decodes=decodes,
    )


def _tiles(query_tokens: np.ndarray, skipped: int, tile_queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Tiles of the rows after the first `skipped`; the longest rows' last tiles, which read most, come first."""
    counts = -(-query_tokens // tile_queries)
    counts[:skipped] = 0
    rows = np.repeat(np.arange(len(counts)), counts)
    firsts = (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)) * tile_queries
    return rows[::-1], firsts[::-1]
