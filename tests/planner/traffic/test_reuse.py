"""One pass for all cache sizes, against a cache that is really played."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.traffic import PrefixHashes, curves
from planner.traffic.reuse import reuse_curve

PROMPTS = st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=1, max_size=25)


def hashes_of(prompts: list[list[int]]) -> PrefixHashes:
    flat = np.array([block for prompt in prompts for block in prompt], np.uint64)
    return PrefixHashes(
        flat, np.concatenate(([0], np.cumsum([len(p) for p in prompts]))).astype(np.int64), 16
    )


def played(prompts: list[list[int]], size: int) -> int:
    """Hits of an LRU cache of `size` blocks: a prompt looks its beginning up, then uses its blocks from the end."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for prompt in prompts:
        for block in prompt:
            if block not in cache:
                break
            hits += 1
        for block in reversed(prompt):
            cache.pop(block, None)
            cache[block] = None
        while len(cache) > size:
            cache.popitem(last=False)
    return hits


@settings(max_examples=60, deadline=None)
@given(PROMPTS)
def test_every_cache_size_is_as_if_it_were_played(prompts: list[list[int]]) -> None:
    found = reuse_curve(hashes_of(prompts), points=40)
    blocks = sum(map(len, prompts))
    if not blocks:
        assert found is None
        return
    for size, rate in zip(found.cache_blocks.tolist(), found.hit_rate.tolist(), strict=True):
        assert rate * blocks == pytest.approx(played(prompts, size))
    assert found.hit_rate[-1] == pytest.approx(curves.prefix_hit_rate(hashes_of(prompts)))


def test_a_traffic_that_is_too_large_is_cut_between_requests_and_says_so() -> None:
    found = reuse_curve(hashes_of([[1, 2], [1, 2], [1, 2, 3]]), most_blocks=5)
    assert (found.requests, found.blocks, found.distinct) == (2, 4, 2)
    assert found.hit_rate.tolist() == [0.25, 0.5]
