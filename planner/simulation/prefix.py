"""Which prompts begin alike: the trace's block hashes as names of KV blocks that requests can share.

A prefix cache shares whole KV blocks between requests whose prompts are the same from the first token to the
block's last. A trace says so with one hash for each block of T tokens (Mooncake: 512; 16 where the server's own
hashes were recorded); the engine's blocks have E tokens (16). KV block i is known to be equal in two prompts when
they agree on all trace blocks up to the one that holds its last token, so its name is that beginning and i: E / T
need not be whole, and a trace block of which only a part lies in a prompt names the whole KV blocks of that part.
Hashes are taken one after another from the start, so the same hash behind another beginning is another block.
A name that no second request has can only be met again by the same request (when it was preempted): that needs no
name, so only shared ones are kept, and they are always the first blocks of a prompt.
Generated tokens are never shared: the trace does not say whose prompt repeats them, except by that prompt's hashes.

Where a trace has no hashes, a share of every prompt may be assumed to be cached (`assumed_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Ints
from planner.traffic.model import PrefixHashes


@dataclass(frozen=True, slots=True, eq=False)
class PrefixBlocks:
    """Names of the leading KV blocks of N prompts that other prompts share.

    Request i has ids[offsets[i]:offsets[i + 1]], int64 below `distinct`, for its blocks 0, 1, ... of `block_tokens`.
    A name covers `ahead_tokens` behind its block too (see `blocks_of`).
    """

    ids: Ints
    offsets: Ints
    distinct: int
    block_tokens: int
    ahead_tokens: int = 0

    @property
    def requests(self) -> int:
        return len(self.offsets) - 1

    def take(self, requests: Ints) -> PrefixBlocks:
        """Those of the requests at these positions, in that order."""
        lengths = np.diff(self.offsets)[requests]
        offsets = _offsets(lengths)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        ids = self.ids[np.repeat(self.offsets[:-1][requests], lengths) + within]
        return PrefixBlocks(ids, offsets, self.distinct, self.block_tokens, self.ahead_tokens)


def no_blocks(requests: int, block_tokens: int, ahead_tokens: int = 0) -> PrefixBlocks:
    """Nobody shares anything: only a preempted request can meet its own blocks again."""
    offsets = np.zeros(requests + 1, np.int64)
    return PrefixBlocks(np.zeros(0, np.int64), offsets, 0, block_tokens, ahead_tokens)


def blocks_of(
    hashes: PrefixHashes, prompt_tokens: Ints, block_tokens: int, ahead_tokens: int = 0
) -> PrefixBlocks:
    """Names for the KV blocks of `block_tokens` of prompts with these hashes. prompt_tokens int64[N].

    `ahead_tokens` behind a block must agree too (`Profile.named_ahead`), so of prompts that differ behind a block
    that block is not shared, and the last of a prompt that ends with it has no name before its first output.
    ValueError when the hashes do not say how many tokens each stands for.
    """
    trace_tokens = hashes.block_tokens
    if trace_tokens is None:
        raise ValueError("the hashes do not say how many tokens a block has")
    beginnings, levels = _beginnings(hashes)
    lengths = np.diff(hashes.offsets)
    shared = np.bincount(beginnings, minlength=len(levels)) > 1
    owner = np.repeat(np.arange(len(lengths)), lengths)
    known = np.bincount(owner[shared[beginnings]], minlength=len(lengths))  # a request's first
    tokens = np.minimum(prompt_tokens, known * trace_tokens)
    counts = np.maximum(tokens - ahead_tokens, 0) // block_tokens
    offsets = _offsets(counts)
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    level = ((position + 1) * block_tokens + ahead_tokens - 1) // trace_tokens
    beginning = beginnings[np.repeat(hashes.offsets[:-1], counts) + level]
    # the KV block that is the first to end (with the tokens ahead) in each trace block, and behind the last
    first, end = (np.maximum((levels + n) * trace_tokens - ahead_tokens, 0) // block_tokens for n in (0, 1))
    names = _offsets(np.where(shared, end - first, 0))
    ids = names[beginning] + position - first[beginning]
    return PrefixBlocks(ids, offsets, int(names[-1]), block_tokens, ahead_tokens)


def assumed_blocks(prompt_tokens: Ints, share: float, block_tokens: int) -> Ints:
    """How many leading blocks each prompt is assumed to find, int64[N], when `share` of all prompt tokens is cached.

    By whole blocks, and never the whole prompt: one token at least is computed. What rounding down leaves is carried
    to the next request, so the shares add up; short prompts, which cannot give a block, fall short of it.
    """
    so_far = np.floor(np.cumsum(prompt_tokens) * share / block_tokens).astype(np.int64)
    blocks: Ints = np.minimum(np.diff(so_far, prepend=0), (prompt_tokens - 1) // block_tokens)
    return blocks


def _beginnings(hashes: PrefixHashes) -> tuple[Ints, Ints]:
    """For every hash of the trace, an id of the hashes up to it; and each id's place in the prompt, from 0."""
    _, codes = np.unique(hashes.flat, return_inverse=True)
    lengths = np.diff(hashes.offsets)
    beginnings = np.zeros(len(codes), dtype=np.int64)
    levels: list[Ints] = []
    ids = level = 0
    going = np.flatnonzero(lengths > 0)
    before = np.zeros(len(going), dtype=np.int64)
    while len(going):
        at = hashes.offsets[:-1][going] + level
        names, inverse = np.unique(before * len(codes) + codes[at], return_inverse=True)
        beginnings[at] = ids + inverse
        levels.append(np.full(len(names), level, dtype=np.int64))
        ids += len(names)
        level += 1
        longer = lengths[going] > level
        going, before = going[longer], inverse[longer].astype(np.int64)
    return beginnings, np.concatenate(levels) if levels else np.zeros(0, dtype=np.int64)


def _offsets(lengths: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
