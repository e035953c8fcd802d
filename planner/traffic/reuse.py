"""How much of the prompts a prefix cache of a given size would find: one pass for all sizes.

The cache holds the C blocks used last (LRU). A block is found exactly when fewer than C other blocks were used
since its own last use, so its *reuse distance* says for every C at once whether it hits (Mattson et al., 1970,
"Evaluation techniques for storage hierarchies"). A prompt can use only a contiguous beginning: a block counts
for C when it and all blocks before it are there, so what counts is the largest distance so far. A prompt's
blocks are looked up together and then used from the last to the first, which is how engines free them: the
beginning of a prompt, which others may share, outlives its end. Distances are counted with a Fenwick tree over
the uses: M blocks cost M log M steps. The limit for an endless cache is `curves.prefix_hit_rate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numba
import numpy as np

from planner.traffic.model import Floats, Integers, PrefixHashes

MAX_BLOCKS = 5_000_000
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ReuseCurve:
    """Share of all blocks found, float64[K], for caches of `cache_blocks`, int64[K], rising. The first `requests`
    requests with `blocks` blocks, `distinct` of them different, were played into an empty cache."""

    cache_blocks: Integers
    hit_rate: Floats
    requests: int
    blocks: int
    distinct: int


def reuse_curve(hashes: PrefixHashes, points: int = 120, most_blocks: int = MAX_BLOCKS) -> ReuseCurve | None:
    """From one block to a cache that holds every block; None without blocks.

    A traffic of more than `most_blocks` is cut after the last request that fits: read `requests`."""
    requests = int(np.searchsorted(hashes.offsets, most_blocks, side="right")) - 1
    offsets = hashes.offsets[: requests + 1]
    blocks = int(offsets[-1])
    if not blocks:
        return None
    names, codes = np.unique(hashes.flat[:blocks], return_inverse=True)
    found = np.cumsum(_hits_by_distance(codes.astype(np.int32), offsets, len(names)))
    sizes = np.unique(np.rint(np.geomspace(1, len(names), points)).astype(np.int64))
    return ReuseCurve(sizes, found[sizes] / blocks, requests, blocks, len(names))


def _compiled(function: Function) -> Function:
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no folder that it can write
        return cast(Function, numba.njit(nogil=True)(function))


@_compiled
def _hits_by_distance(codes: Any, offsets: Any, distinct: int) -> Any:
    """Blocks that hit with a cache of exactly d blocks and no smaller one, int64[distinct + 1] over d."""
    uses = len(codes)
    tree = np.zeros(uses + 1, np.int32)  # Fenwick tree over times of use: 1 where a block was used last
    last = np.zeros(distinct, np.int64)  # time of last use from 1; 0: never
    hits = np.zeros(distinct + 1, np.int64)
    time = 0
    held = 0
    for request in range(len(offsets) - 1):
        farthest = 0
        for at in range(offsets[request], offsets[request + 1]):
            used = last[codes[at]]
            if used == 0:
                break
            older = 0
            i = used - 1
            while i > 0:
                older += tree[i]
                i -= i & -i
            farthest = max(farthest, held - older)
            hits[farthest] += 1
        for at in range(offsets[request + 1] - 1, offsets[request] - 1, -1):
            code = codes[at]
            time += 1
            if last[code] == 0:
                held += 1
            else:
                i = last[code]
                while i <= uses:
                    tree[i] -= 1
                    i += i & -i
            last[code] = time
            i = time
            while i <= uses:
                tree[i] += 1
                i += i & -i
    return hits
