"""Attention of a step's rows over their pages, and the index arrays that say where everything lies.

Before a step, `plan` turns a StepBatch into tensors once; all layers use them. In each layer one gather
brings the pages of all rows; then each row attends on its own slice, so the cost follows the sum of contexts
and not rows times the longest. Within a group of query heads that share a KV head:
  decode row  its heads become the query positions of one attention call: no copy of K or V
  chunk       causal, queries in blocks of 128, each against the keys it may see only. Without that, half of a
              long chunk's work would be masked away, which no serving kernel does
On a GPU this loop over rows is not representative (a paged kernel is; see the provenance label in runner.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from calibration.engine.batch import StepBatch, blocks_for, slots_of

QUERY_BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A row's place: its query tokens in the step, its pages in the gathered KV."""

    first: int  # index of its first query token in the step
    query_tokens: int
    kv_first: int  # index of its first token in the gathered pages
    cached_tokens: int
    masks: tuple[torch.Tensor, ...]  # one per block of queries: [queries, visible keys], 0 or -inf


@dataclass(frozen=True, slots=True)
class StepPlan:
    token_ids: torch.Tensor  # [n]
    positions: torch.Tensor  # [n], of each query token in its sequence
    slots: torch.Tensor  # [n], where its K and V go
    blocks: torch.Tensor  # pages of all rows one after another
    sampled: torch.Tensor  # [S], indices of the tokens that yield logits
    rows: tuple[RowPlan, ...]


def plan(batch: StepBatch, block_tokens: int, dtype: torch.dtype, device: torch.device) -> StepPlan:
    """Index tensors of a step, on the device. Host work: a serving engine does it beside the previous step."""
    positions, slots, blocks, rows = [], [], [], []
    first = kv_first = 0
    for query, cached, table in zip(
        batch.query_tokens.tolist(), batch.cached_tokens.tolist(), batch.block_tables, strict=True
    ):
        used = table[: blocks_for(cached + query, block_tokens)]
        positions.append(np.arange(cached, cached + query, dtype=np.int64))
        slots.append(slots_of(used, cached, cached + query, block_tokens))
        blocks.append(used)
        masks = () if query == 1 else _causal_masks(query, cached, dtype, device)
        rows.append(RowPlan(first, query, kv_first, cached, masks))
        first += query
        kv_first += len(used) * block_tokens
    ends = np.cumsum(batch.query_tokens) - 1
    return StepPlan(
        token_ids=_on(batch.token_ids, device),
        positions=_on(np.concatenate(positions), device),
        slots=_on(np.concatenate(slots), device),
        blocks=_on(np.concatenate(blocks), device),
        sampled=_on(ends[batch.sampled], device),
        rows=tuple(rows),
    )


def attend(queries: torch.Tensor, pages: torch.Tensor, rows: tuple[RowPlan, ...]) -> torch.Tensor:
    """Attention output [n, heads, head_dim] for queries [n, heads, head_dim] over the gathered pages
    [kv tokens, 2, kv_heads, head_dim]; masked-out and unused cache slots never enter a sum."""
    n, heads, head_dim = queries.shape
    kv_heads = pages.shape[2]
    group = heads // kv_heads
    result = torch.empty_like(queries)
    keys, values = pages.permute(1, 2, 0, 3).unsqueeze(2)  # each [kv_heads, 1, kv tokens, head_dim]
    grouped = queries.view(n, kv_heads, group, head_dim)
    out = result.view(n, kv_heads, group, head_dim)
    for row in rows:
        if row.query_tokens == 1:
            end = row.kv_first + row.cached_tokens + 1
            out[row.first] = F.scaled_dot_product_attention(
                grouped[row.first].unsqueeze(1),
                keys[:, :, row.kv_first : end],
                values[:, :, row.kv_first : end],
            ).squeeze(1)
            continue
        for index, mask in enumerate(row.masks):
            begin = row.first + index * QUERY_BLOCK_TOKENS
            query = grouped[begin : begin + mask.shape[0]].permute(1, 2, 0, 3)
            seen = slice(row.kv_first, row.kv_first + mask.shape[1])
            attended = F.scaled_dot_product_attention(
                query,
                keys[:, :, seen].expand(-1, group, -1, -1),
                values[:, :, seen].expand(-1, group, -1, -1),
                attn_mask=mask,
            )
            out[begin : begin + mask.shape[0]] = attended.permute(2, 0, 1, 3)
    return result


def _causal_masks(
    query_tokens: int, cached_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, ...]:
    masks = []
    for begin in range(0, query_tokens, QUERY_BLOCK_TOKENS):
        end = min(begin + QUERY_BLOCK_TOKENS, query_tokens)
        mask = torch.full((end - begin, cached_tokens + end), float("-inf"), dtype=dtype, device=device)
        masks.append(mask.triu_(cached_tokens + begin + 1))
    return tuple(masks)


def _on(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
