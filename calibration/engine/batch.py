"""What one engine step contains, as numpy arrays: the engine's input, whoever assembled it.

A row is a sequence with `query_tokens` new tokens after `cached_tokens` that already are in the KV cache.
A decode row has one query token; a prefill chunk has any number. Tokens of all rows lie one after another,
row by row. A row's block table lists the KV blocks that hold its tokens in order, old and new: token i of a
sequence lives in slot `table[i // block_tokens] * block_tokens + i % block_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step. Raises ValueError when the arrays do not belong together."""

    token_ids: Integers  # [n], rows one after another
    query_tokens: Integers  # [rows], each at least 1
    cached_tokens: Integers  # [rows]
    block_tables: tuple[Integers, ...]  # rows arrays, each long enough for cached + query tokens
    sampled: NDArray[np.bool_]  # [rows], whether the row's last token yields logits

    def __post_init__(self) -> None:
        rows = len(self.block_tables)
        if not rows or not (
            self.query_tokens.shape == self.cached_tokens.shape == self.sampled.shape == (rows,)
        ):
            raise ValueError("a step needs rows, and one value per row in each array")
        if (self.query_tokens < 1).any() or (self.cached_tokens < 0).any():
            raise ValueError("a row needs at least one query token and no negative number of cached ones")
        if self.token_ids.shape != (int(self.query_tokens.sum()),):
            raise ValueError("token_ids must hold exactly the query tokens of all rows")


def slots_of(table: Integers, first: int, last: int, block_tokens: int) -> Integers:
    """Cache slots of a sequence's tokens first..last-1."""
    tokens = np.arange(first, last, dtype=np.int64)
    return table[tokens // block_tokens] * block_tokens + tokens % block_tokens


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // block_tokens)


def leading_decodes(batch: StepBatch) -> int:
    """Rows with one query token before the first row with more."""
    longer = np.flatnonzero(batch.query_tokens > 1)
    return int(longer[0]) if len(longer) else len(batch.query_tokens)


def first_token(batch: StepBatch) -> StepBatch:
    """Of the step its first row's first token alone: what it writes into the cache, the step writes there, too."""
    return StepBatch(
        batch.token_ids[:1], np.ones(1, dtype=np.int64), batch.cached_tokens[:1], batch.block_tables[:1],
        np.ones(1, dtype=np.bool_),
    )  # fmt: skip


def random_batch(
    decode_contexts: Sequence[int],
    chunks: Sequence[tuple[int, int, bool]],
    *,
    vocab_size: int,
    blocks: int,
    block_tokens: int,
    rng: np.random.Generator,
) -> StepBatch:
    """A step of the given shape over random tokens and blocks scattered over the whole pool.

    decode_contexts: tokens each decode row has cached before the step. chunks: (query tokens, cached tokens,
    sampled) each. No two rows share a block. Raises ValueError when the pool is too small for the step.
    """
    query = np.array([1] * len(decode_contexts) + [chunk[0] for chunk in chunks], dtype=np.int64)
    cached = np.array([*decode_contexts, *(chunk[1] for chunk in chunks)], dtype=np.int64)
    sampled = np.array([True] * len(decode_contexts) + [chunk[2] for chunk in chunks], dtype=np.bool_)
    sizes = [blocks_for(int(tokens), block_tokens) for tokens in query + cached]
    if sum(sizes) > blocks:
        raise ValueError(f"the step needs {sum(sizes)} KV blocks, the pool has {blocks}")
    scattered = rng.choice(blocks, size=sum(sizes), replace=False).astype(np.int64)
    tables = tuple(np.split(scattered, np.cumsum(sizes)[:-1]))
    tokens = rng.integers(0, vocab_size, size=int(query.sum()), dtype=np.int64)
    return StepBatch(tokens, query, cached, tables, sampled)
