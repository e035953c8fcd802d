"""Prompts of given lengths, as token ids: what a request says does not matter to its timing, what it shares does.

Blocks with the same prefix hash become the same tokens, in every process and on every day, so a server's prefix cache
finds what the traffic's hashes say it should; the rest of a prompt is its own. Ids stay clear of the first 1,000 of the
vocabulary (of a small one: of its first half), where tokenizers keep their special tokens.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.traffic import PrefixHashes, Traffic

FIRST_ID: Final = 1_000
LEAST_VOCABULARY: Final = 64


def prompt_ids(traffic: Traffic, i: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Token ids of request i's prompt. ValueError for a vocabulary below LEAST_VOCABULARY."""
    if vocabulary < LEAST_VOCABULARY:
        raise ValueError(f"vocabulary must be at least {LEAST_VOCABULARY}, not {vocabulary}")
    length, first = int(traffic.prompt_tokens[i]), min(FIRST_ID, vocabulary // 2)
    ids = _shared(traffic.prefix_hashes, i, length, first, vocabulary)
    own = np.random.default_rng((seed, i, 1)).integers(first, vocabulary, length - len(ids))
    return [*ids, *own.tolist()]


def _shared(hashes: PrefixHashes | None, i: int, length: int, first: int, vocabulary: int) -> list[int]:
    if hashes is None or not hashes.block_tokens:
        return []
    ids: list[int] = []
    for name in hashes.flat[hashes.offsets[i] : hashes.offsets[i + 1]].tolist():
        block = np.random.default_rng((name, 0)).integers(first, vocabulary, hashes.block_tokens)
        ids += block.tolist()
    return ids[:length]
