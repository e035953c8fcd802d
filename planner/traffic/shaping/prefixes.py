"""Prefix hashes under shaping: kept apart, made unique, cut and grown with their prompts.

A hash stands for a block's place in a text. Hashes are 64 bits, so a mixed one equals another by chance once in
1.8e19 pairs. Cutting a prompt keeps the hashes of the blocks that are still begun: the last one then stands for
the part of its block that is left (planner/simulation/prefix.py counts only whole blocks of the engine). Growing a
prompt appends text that nobody shares: from the block that was incomplete on, the hashes are new.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.traffic.errors import refuse
from planner.traffic.model import Integers, PrefixHashes
from planner.traffic.stream import LIMITS

Hashes = NDArray[np.uint64]


def mixed(values: Hashes, salt: int) -> Hashes:
    """Other hashes, equal exactly where the given ones are: the finalizer of SplitMix64, a bijection."""
    with np.errstate(over="ignore"):
        x = values + np.uint64((0x9E3779B97F4A7C15 * (salt + 1)) & 0xFFFFFFFFFFFFFFFF)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


def check_count(count: int, field: str) -> None:
    """TrafficError (`field`) where there would be more hashes than any file may have."""
    if count > LIMITS.hash_ids:
        message = f"It would have {count:,} hash_ids; {LIMITS.hash_ids:,} are the most."
        raise refuse(message, code="option", field=field)


def apart(hashes: PrefixHashes, salt: int) -> PrefixHashes:
    """The same sharing among themselves, and none with the original."""
    return PrefixHashes(mixed(hashes.flat, salt), hashes.offsets, hashes.block_tokens)


def unique(count: int, salt: int) -> Hashes:
    """So many hashes, all different, that nobody else has."""
    return mixed(np.arange(count, dtype=np.uint64), salt ^ 0x5DEECE66D)


def joined(parts: list[PrefixHashes | None], requests: list[int], block_tokens: int | None) -> PrefixHashes:
    """One after another; a part without hashes has requests without any."""
    counts = [
        np.zeros(n, np.int64) if part is None else np.diff(part.offsets)
        for part, n in zip(parts, requests, strict=True)
    ]
    flat = [part.flat for part in parts if part is not None]
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(counts)))).astype(np.int64)
    return PrefixHashes(np.concatenate(flat) if flat else np.zeros(0, np.uint64), offsets, block_tokens)


def refitted(
    hashes: PrefixHashes, before: Integers, after: Integers, salt: int, field: str
) -> PrefixHashes | None:
    """The hashes of prompts whose lengths became `after`; None where the block size is not known and a prompt
    changed, because then nobody can say how many blocks it has. TrafficError (`field`) for too many."""
    if np.array_equal(before, after):
        return hashes
    size = hashes.block_tokens
    if size is None:
        return None
    had = np.diff(hashes.offsets)
    has = np.where(before == after, had, np.where(had > 0, -(-after // size), 0))
    check_count(int(has.sum()), field)
    # Blocks whose text is as it was: all that are begun after a cut; the complete ones before what was added.
    kept = np.where(after <= before, np.minimum(had, has), np.minimum(had, before // size))
    offsets = np.concatenate(([0], np.cumsum(has))).astype(np.int64)
    within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], has)
    is_old = within < np.repeat(kept, has)
    flat = unique(len(within), salt)
    flat[is_old] = hashes.flat[(np.repeat(hashes.offsets[:-1], has) + within)[is_old]]
    return PrefixHashes(flat, offsets, size)


def unshared_renewed(drawn: PrefixHashes, source: PrefixHashes, salt: int) -> PrefixHashes:
    """`drawn` are hashes of new requests like some of `source`: what two requests of `source` share they share as
    well, the rest is their own text."""
    values, counts = np.unique(source.flat, return_counts=True)
    shared = counts[np.searchsorted(values, drawn.flat)] > 1
    # Contiguous beginnings only: behind a block of one's own, everything is one's own.
    lengths = np.diff(drawn.offsets)
    own_before = np.concatenate(([0], np.cumsum(~shared)))
    begun = np.repeat(own_before[drawn.offsets[:-1]], lengths)
    is_shared = shared & (own_before[1:] == begun)
    flat = unique(len(drawn.flat), salt)
    flat[is_shared] = drawn.flat[is_shared]
    return PrefixHashes(flat, drawn.offsets, drawn.block_tokens)
