"""The paged KV pool: fixed blocks of tokens, handed out in any order, as serving engines keep it.

K and V of a token lie together, so that one gather per layer brings both; of a latent cache there is one vector.
The pool is really allocated and filled with random numbers: pages that were never written are not memory, and
zeros are not data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from calibration.architecture import Architecture
from calibration.engine.shards import WHOLE, Shard

BLOCK_TOKENS = 16
_PATTERN_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class PagedKVCache:
    """One pool a layer: [blocks, block_tokens, 2 (K, V), kv_heads, head_dim], or latent
    [blocks, block_tokens, rank + rotary]."""

    layers: tuple[torch.Tensor, ...]
    block_tokens: int

    @property
    def blocks(self) -> int:
        return self.layers[0].shape[0]

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def write(self, layer: int, slots: torch.Tensor, entries: torch.Tensor) -> None:
        """Stores what n tokens cache, [n, ...] as the pool has it, into their slots [n]."""
        self.layers[layer].flatten(0, 1).index_copy_(0, slots, entries)

    def gather(self, layer: int, blocks: torch.Tensor) -> torch.Tensor:
        """The given blocks one after another: [len(blocks) * block_tokens, ...]."""
        pages = self.layers[layer].flatten(1).index_select(0, blocks)
        return pages.view(-1, *self.layers[layer].shape[2:])


def allocate(
    architecture: Architecture,
    tokens: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    block_tokens: int = BLOCK_TOKENS,
    shard: Shard = WHOLE,
) -> PagedKVCache:
    """A pool of at most `tokens` tokens (whole blocks), every page touched; of a rank, its own KV heads.

    Filled by repeating a few million random numbers: drawing each of 10^9 values would take longer than the
    experiment. Raises ValueError for less than one block, and what the allocator raises when memory is short.
    """
    a, blocks = architecture, tokens // block_tokens
    if blocks < 1:
        raise ValueError(f"a KV pool needs at least {block_tokens} tokens, got {tokens}")
    own = shard.kv_heads(a)
    entry = (a.latent.elements,) if a.latent else (2, own.stop - own.start, a.head_dim)
    generator = torch.Generator(device=device).manual_seed(seed)
    pattern = torch.empty(_PATTERN_ELEMENTS, dtype=dtype, device=device).normal_(generator=generator)
    layers = []
    for _ in range(a.layers):
        pool = torch.empty((blocks, block_tokens, *entry), dtype=dtype, device=device)
        for part in pool.view(-1).split(_PATTERN_ELEMENTS):
            part.copy_(pattern[: part.numel()])
        layers.append(pool)
    return PagedKVCache(tuple(layers), block_tokens)
