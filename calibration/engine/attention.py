"""Attention of a step's rows over their pages in plain torch, and the index arrays that say where everything lies.

Before a step, `plan` turns a StepBatch into tensors once; all layers use them. In each layer one gather
brings the pages of all rows; then each row attends on its own slice, so the cost follows the sum of contexts
and not rows times the longest. Within a group of query heads that share a KV head:
  decode row  its heads become the query positions of one attention call: no copy of K or V
  chunk       causal, queries in blocks of 128, each against the keys it may see only. Without that, half of a
              long chunk's work would be masked away, which no serving kernel does
A layer with a window gathers and sees the pages that its last tokens lie in, no others.
On a GPU this loop over rows is not representative; kernels/ has what runs there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from calibration.engine.batch import StepBatch, blocks_for, slots_of

QUERY_BLOCK_TOKENS = 128
Window = int | None


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Some of a row's query tokens, and the keys they may see; no mask where they see all of them."""

    queries: slice  # of the step's tokens
    keys: slice  # of the gathered tokens
    mask: torch.Tensor | None  # [queries, keys], 0 or -inf


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A row's place: its gathered tokens, and its query tokens in blocks."""

    keys: slice
    blocks: tuple[QueryBlock, ...]

    @property
    def decodes(self) -> bool:
        only = self.blocks[0].queries
        return len(self.blocks) == 1 and only.stop - only.start == 1


@dataclass(frozen=True, slots=True)
class PagesPlan:
    """The pages that layers with one kind of window read, and where in them each row's tokens are."""

    pages: torch.Tensor  # blocks of all rows one after another
    rows: tuple[RowPlan, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    token_ids: torch.Tensor  # [n]
    positions: torch.Tensor  # [n], of each query token in its sequence
    slots: torch.Tensor  # [n], where its K and V go
    sampled: torch.Tensor  # [S], indices of the tokens that yield logits
    views: dict[Window, PagesPlan]


def plan(
    batch: StepBatch,
    block_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    windows: frozenset[Window] = frozenset({None}),
) -> StepPlan:
    """Index tensors of a step, on the device. Host work: a serving engine does it beside the previous step."""
    positions, slots = token_places(batch, block_tokens)
    ends = np.cumsum(batch.query_tokens) - 1
    return StepPlan(
        token_ids=_on(batch.token_ids, device),
        positions=_on(positions, device),
        slots=_on(slots, device),
        sampled=_on(ends[batch.sampled], device),
        views={window: _view(batch, block_tokens, window, dtype, device) for window in windows},
    )


def token_places(batch: StepBatch, block_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(position in its sequence, slot in the pool) of each query token: int64 [n] both."""
    positions, slots = [], []
    for query, cached, table in zip(
        batch.query_tokens.tolist(), batch.cached_tokens.tolist(), batch.block_tables, strict=True
    ):
        positions.append(np.arange(cached, cached + query, dtype=np.int64))
        slots.append(slots_of(table, cached, cached + query, block_tokens))
    return np.concatenate(positions), np.concatenate(slots)


def _view(
    batch: StepBatch, block_tokens: int, window: Window, dtype: torch.dtype, device: torch.device
) -> PagesPlan:
    pages, rows = [], []
    first = gathered = 0
    for query, cached, table in zip(
        batch.query_tokens.tolist(), batch.cached_tokens.tolist(), batch.block_tables, strict=True
    ):
        skipped = 0 if window is None else max(0, cached + 1 - window) // block_tokens
        used = table[skipped : blocks_for(cached + query, block_tokens)]
        origin = gathered - skipped * block_tokens  # where the sequence's first token would lie
        blocks = tuple(
            _query_block(
                begin, min(begin + QUERY_BLOCK_TOKENS, query), first, cached, origin, window, dtype, device
            )
            for begin in range(0, query, QUERY_BLOCK_TOKENS)
        )
        rows.append(RowPlan(slice(gathered, origin + cached + query), blocks))
        pages.append(used)
        first += query
        gathered += len(used) * block_tokens
    return PagesPlan(_on(np.concatenate(pages), device), tuple(rows))


def _query_block(
    begin: int, end: int, first: int, cached: int, origin: int, window: Window, dtype: torch.dtype,
    device: torch.device,
) -> QueryBlock:  # fmt: skip
    low = 0 if window is None else max(0, cached + begin + 1 - window)
    high = cached + end
    mask = None
    if end - begin > 1:
        mask = torch.full((end - begin, high - low), float("-inf"), dtype=dtype, device=device)
        mask.triu_(cached + begin + 1 - low)
        if window is not None:
            too_old = torch.ones(end - begin, high - low, dtype=torch.bool, device=device)
            mask.masked_fill_(too_old.tril_(cached + begin - window - low), float("-inf"))
    return QueryBlock(slice(first + begin, first + end), slice(origin + low, origin + high), mask)


def attend(
    queries: torch.Tensor, pages: torch.Tensor, rows: tuple[RowPlan, ...], scale: float, cap: float = 0.0
) -> torch.Tensor:
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
        if row.decodes:
            seen = row.blocks[0].keys
            query = grouped[row.blocks[0].queries.start].unsqueeze(1)
            attended = softmaxed(query, keys[:, :, seen], values[:, :, seen], None, scale, cap)
            out[row.blocks[0].queries.start] = attended.squeeze(1)
            continue
        for block in row.blocks:
            query = grouped[block.queries].permute(1, 2, 0, 3)
            key, value = (x[:, :, block.keys].expand(-1, group, -1, -1) for x in (keys, values))
            out[block.queries] = softmaxed(query, key, value, block.mask, scale, cap).permute(2, 0, 1, 3)
    return result


def softmaxed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """One attention call; with a cap, scores s become cap tanh(s / cap) before the mask (Gemma 2)."""
    if not cap:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    scores = (query @ key.transpose(-1, -2)).mul_(scale / cap).tanh_().mul_(cap)
    if mask is not None:
        scores += mask
    return scores.softmax(dim=-1) @ value


def _on(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
