"""A projection's heads on their way into the pool: normed (Qwen3), turned by their position, stored in their slot.

One program a token and head. A slot below 0 is a padded row of a graph: nothing is stored for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _store(
    qkv, queries, pool, cos, sin, positions, slots, query_norm, key_norm, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    width: tl.constexpr = 2 * HALF
    source = qkv + token * (HEADS + 2 * KV_HEADS) * width + head * width
    left = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(source + HALF + at, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        if NORM:
            scale = 1.0 / tl.sqrt((tl.sum(left * left, axis=0) + tl.sum(right * right, axis=0)) / width + eps)
            weight = query_norm
            if head >= HEADS:
                weight = key_norm
            left = left * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
            right = right * scale * tl.load(weight + HALF + at, mask=inside, other=0.0).to(tl.float32)
        position = tl.load(positions + token)
        c = tl.load(cos + position * HALF + at, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + position * HALF + at, mask=inside, other=0.0).to(tl.float32)
        turned = left * c - right * s
        right = right * c + left * s
        left = turned
    if head < HEADS:
        out = queries + token * HEADS * width + head * width
        tl.store(out + at, left, mask=inside)
        tl.store(out + HALF + at, right, mask=inside)
    else:
        slot = tl.load(slots + token)
        kept = inside & (slot >= 0)
        out = pool + slot * 2 * KV_HEADS * width + (head - HEADS) * width  # keys first, then values
        tl.store(out + at, left, mask=kept)
        tl.store(out + HALF + at, right, mask=kept)


@triton.jit
def _store_latent(
    queries, entry, pool, cos, sin, positions, slots, weight, entry_stride, eps,
    HEADS: tl.constexpr, NOPE: tl.constexpr, RANK: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    position = tl.load(positions + token)
    c = tl.load(cos + position * HALF + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + position * HALF + at, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots + token)
    source = queries + token * HEADS * (NOPE + 2 * HALF) + head * (NOPE + 2 * HALF) + NOPE
    target = source
    kept = inside
    if head == HEADS:
        source = entry + token * entry_stride + RANK
        target = pool + slot * (RANK + 2 * HALF) + RANK
        kept = inside & (slot >= 0)
        wide = tl.arange(0, BLOCK_RANK)
        within = wide < RANK
        latent = tl.load(entry + token * entry_stride + wide, mask=within, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(latent * latent, axis=0) / RANK + eps)
        factor = tl.load(weight + wide, mask=within, other=0.0).to(tl.float32)
        tl.store(pool + slot * (RANK + 2 * HALF) + wide, latent * scale * factor, mask=within & (slot >= 0))
    left = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(source + HALF + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + at, left * c - right * s, mask=kept)
    tl.store(target + HALF + at, right * c + left * s, mask=kept)


def store(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
) -> torch.Tensor:
    """Queries [n, heads, head_dim]; keys and values of qkv [n, (heads + 2 kv_heads) head_dim] go into the pool."""
    kv_heads, head_dim = pool.shape[3], pool.shape[4]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    queries = torch.empty(len(qkv), heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    first, second = norms or (qkv, qkv)
    _store[(len(qkv), heads + 2 * kv_heads)](
        qkv, queries, pool, cos, sin, positions, slots, first, second, eps,
        HEADS=heads, KV_HEADS=kv_heads, HALF=head_dim // 2, BLOCK=triton.next_power_of_2(head_dim // 2),
        NORM=norms is not None, num_warps=1,
    )  # fmt: skip
    return queries


def store_latent(
    queries: torch.Tensor,
    entry: torch.Tensor,
    pool: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """The queries [n, heads, nope + rotary], their rotary part turned in place; entry goes into the pool."""
    n, heads, width = queries.shape
    rank = weight.shape[0]
    half = (pool.shape[2] - rank) // 2
    _store_latent[(n, heads + 1)](
        queries, entry, pool, cos, sin, positions, slots, weight, entry.stride(0), eps,
        HEADS=heads, NOPE=width - 2 * half, RANK=rank, HALF=half, BLOCK=triton.next_power_of_2(half),
        BLOCK_RANK=triton.next_power_of_2(rank), num_warps=2,
    )  # fmt: skip
    return queries
