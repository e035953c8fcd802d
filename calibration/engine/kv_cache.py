"""The paged KV pool: fixed blocks of tokens, handed out in any order, as serving engines keep it.

K and V of a token lie together, so that one gather per layer brings both. The pool is really allocated and
filled with random numbers: pages that were never written are not memory, and zeros are not data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from calibration.architecture import Architecture

BLOCK_TOKENS = 16
_PATTERN_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class PagedKVCache:
    layers: tuple[torch.Tensor, ...]  # each [blocks, block_tokens, 2, kv_heads, head_dim]; index 2 is K, V
    block_tokens: int

    @property
    def blocks(self) -> int:
        return self.layers[0].shape[0]

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores K and V [n, kv_heads, head_dim] of n tokens into their slots [n]."""
        self.layers[layer].flatten(0, 1).index_copy_(0, slots, torch.stack((keys, values), dim=1))

    def gather(self, layer: int, blocks: torch.Tensor) -> torch.Tensor:
        """The given blocks one after another: [len(blocks) * block_tokens, 2, kv_heads, head_dim]."""
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
) -> PagedKVCache:
    """A pool of at most `tokens` tokens (whole blocks), every page touched.

    Filled by repeating a few million random numbers: drawing each of 10^9 values would take longer than the
    experiment. Raises ValueError for less than one block, and what the allocator raises when memory is short.
    """
    blocks = tokens // block_tokens
    if blocks < 1:
        raise ValueError(f"a KV pool needs at least {block_tokens} tokens, got {tokens}")
    shape = (blocks, block_tokens, 2, architecture.kv_heads, architecture.head_dim)
    generator = torch.Generator(device=device).manual_seed(seed)
    pattern = torch.empty(_PATTERN_ELEMENTS, dtype=dtype, device=device).normal_(generator=generator)
    layers = []
    for _ in range(architecture.layers):
        pool = torch.empty(shape, dtype=dtype, device=device)
        for part in pool.view(-1).split(_PATTERN_ELEMENTS):
            part.copy_(pattern[: part.numel()])
        layers.append(pool)
    return PagedKVCache(tuple(layers), block_tokens)
