"""The prefix pool that all replicas share, in plain Python, and what is fetched from it.

A prompt's full blocks are in the pool from the end of the step that completes the prompt (on a replica that caches).
When a request is sent to such a replica, the pool is asked for the blocks that follow those the replica has cached
itself. What it has of them without a gap, but for the last token, is fetched before the request joins the replica's
queue, and is not computed when it is admitted, provided that the replica's cache still has the blocks in front. With
push, the fetch begins when the decode side has made room. A request that is computed again fetches nothing.

All blocks of a prompt take room, also those that no other prompt shares. The least recently used makes room; of one
prompt the tail goes first, since nobody can use the tail without the beginning.
Source: Mooncake (Qin et al., FAST 2025): a prefill node loads the reusable blocks from the pool of the hosts' memory
before it computes the rest, and stores what it computed there. Blocks, tokens, bytes, seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from planner.simulation.cluster.deployment import PrefixPool


class PrefixStore:
    """`blocks`: the oldest first, 1 for a name that prompts share, or all those of one prompt that are its own."""

    def __init__(self, pool: PrefixPool, shared: Sequence[Sequence[int]]) -> None:
        self.pool = pool
        self.table = pool.table.arrays()
        self.shared = shared
        self.blocks: OrderedDict[int, int] = OrderedDict()
        self.size = self.stored = self.evicted = 0

    def found(self, request: int, first: int, most: int) -> int:
        """The first block from `first` on that is not there; at most `most`."""
        names = self.shared[request]
        while first < min(most, len(names)) and names[first] in self.blocks:
            first += 1
        return first

    def touch(self, request: int, first: int, end: int) -> None:
        for position in reversed(range(first, end)):
            self.blocks.move_to_end(self.shared[request][position])

    def store(self, request: int, full_blocks: int) -> None:
        names = self.shared[request][:full_blocks]
        self._put(-1 - request, full_blocks - len(names))
        for name in reversed(names):
            self._put(name, 1)
        while self.pool.blocks is not None and self.size > self.pool.blocks:
            self._evict()

    def _put(self, key: int, count: int) -> None:
        if count > 0:
            new = count - self.blocks.pop(key, 0)
            self.blocks[key] = count
            self.size += new
            self.stored += new

    def _evict(self) -> None:
        key, count = next(iter(self.blocks.items()))
        if count > 1:
            self.blocks[key] = count - 1
        else:
            del self.blocks[key]
        self.size -= 1
        self.evicted += 1
