"""The requests of one run, checked, without those that could never be served, and with their queue order.

A request that could never be admitted, or never again once it was preempted, would wait for ever
(`Profile.possible`): it is rejected before the run and its index reported. Blocks that a prefix cache would share do
not change that: it must hold them all at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.prefix import PrefixBlocks, assumed_blocks, no_blocks
from planner.simulation.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """`kept` int64[N]: positions of the served requests in the input; the other arrays have N entries, by arrival.

    `tie` orders requests of equal priority and arrival (vLLM compares ids as strings). `victim_tie` does where one of
    them must give way: a trace's come one after another whatever its clock's ticks, so the later one does (of those
    that really arrive at once vLLM takes the first, and two can evict each other for ever). `prefix` names the blocks
    that prompts share; the first `assumed_blocks` of each are taken to be cached when it is first admitted.
    """

    total: int
    kept: Ints
    rejected: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    priority: Ints
    tie: Ints
    victim_tie: Ints
    prefix: PrefixBlocks
    assumed_blocks: Ints

    def spread(self, values: Floats) -> Floats:
        """Back to the input's positions; NaN where a request was rejected."""
        spread = np.full(self.total, np.nan)
        spread[self.kept] = values
        return spread

    def spread_counts(self, values: Ints) -> Ints:
        """The same for counts; 0 where a request was rejected."""
        spread = np.zeros(self.total, dtype=np.int64)
        spread[self.kept] = values
        return spread


def prepare(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    profile: Profile,
    tie: Ints | None = None,
    max_tokens: Ints | None = None,
    prefix: PrefixBlocks | None = None,
    assumed_hit_share: float = 0.0,
) -> Workload:
    """Check the arrays (equal lengths, sorted finite arrivals from 0 on, at least one prompt and output token).

    ValueError names what is wrong and the first position. `tie`, where given, says that equal arrivals are one instant;
    it defaults to the order of the arrays,
    `max_tokens` to the outputs, which it must not be below. `prefix` is ignored by an engine that does not cache;
    `assumed_hit_share` of all prompt tokens asks for one that does, and no `prefix`.
    """
    arrival = np.ascontiguousarray(arrival_s, dtype=np.float64)
    prompt = np.ascontiguousarray(prompt_tokens, dtype=np.int64)
    output = np.ascontiguousarray(output_tokens, dtype=np.int64)
    count = len(arrival)
    order = (
        np.zeros(count, dtype=np.int64)
        if priority is None
        else np.ascontiguousarray(priority, dtype=np.int64)
    )
    ties = np.arange(count, dtype=np.int64) if tie is None else np.ascontiguousarray(tie, dtype=np.int64)
    limit = output if max_tokens is None else np.ascontiguousarray(max_tokens, dtype=np.int64)
    for name, array in (
        ("prompt_tokens", prompt),
        ("output_tokens", output),
        ("max_tokens", limit),
        ("priority", order),
        ("tie", ties),
    ):
        if len(array) != count:
            raise ValueError(f"{name} has {len(array)} entries, arrival_s has {count}")
    for name, array in (("prompt_tokens", prompt), ("output_tokens", output)):
        _refuse(array < 1, f"{name} must be at least 1")
    _refuse(~np.isfinite(arrival) | (arrival < 0), "arrival_s must be finite and not negative")
    _refuse(np.diff(arrival, prepend=0.0) < 0, "arrival_s must be sorted")
    _refuse(limit < output, "max_tokens must not be below output_tokens")
    possible = profile.possible(prompt, output, limit)
    kept = np.flatnonzero(possible)
    _check_prefix(prefix, assumed_hit_share, count, profile)
    assumed = np.zeros(len(kept), dtype=np.int64)
    if assumed_hit_share > 0.0:
        assumed = assumed_blocks(prompt, assumed_hit_share, profile.block_size)[kept]
    shared = prefix.take(kept) if prefix and profile.caching else no_blocks(len(kept), profile.block_size)
    return Workload(
        total=count,
        kept=kept,
        rejected=np.flatnonzero(~possible),
        arrival_s=arrival[kept],
        prompt_tokens=prompt[kept],
        output_tokens=output[kept],
        max_tokens=limit[kept],
        priority=order[kept],
        tie=ties[kept],
        victim_tie=ties[kept] if tie is None else np.zeros(len(kept), dtype=np.int64),
        prefix=shared,
        assumed_blocks=assumed,
    )


def _check_prefix(prefix: PrefixBlocks | None, share: float, count: int, profile: Profile) -> None:
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"assumed_hit_share must be in [0, 1], not {share}")
    if share > 0.0 and not profile.caching:
        raise ValueError("assumed_hit_share needs prefix_caching")
    if share > 0.0 and prefix is not None:
        raise ValueError("either the trace's prefix or an assumed_hit_share, not both")
    if prefix is not None and prefix.requests != count:
        raise ValueError(f"the prefix names the blocks of {prefix.requests} requests, arrival_s has {count}")
    if prefix is not None and profile.caching and prefix.block_tokens != profile.block_size:
        raise ValueError(
            f"the prefix names blocks of {prefix.block_tokens} tokens, the engine's have {profile.block_size}"
        )
    if prefix is not None and profile.caching and prefix.ahead_tokens != profile.named_ahead:
        raise ValueError(
            f"the prefix's names cover {prefix.ahead_tokens} tokens behind a block, the engine's {profile.named_ahead}"
        )


def _refuse(wrong: Bools, message: str) -> None:
    if wrong.any():
        raise ValueError(f"{message} (first at position {int(np.flatnonzero(wrong)[0])})")
