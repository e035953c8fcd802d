"""Everything a simulation knows, as flat arrays that compiled code can hold.

One record per request (`REQUEST`, two cache lines), one record of counters (`NOW`), one of knobs (`KNOBS`), and
a few rings. Requests that decode in every step are the *steady* set. Nothing is stored for them per step: all of
them advance with one counter, `tick`, so a request's progress follows from the tick at which it will be finished:

    emitted = output - (finish_tick - tick)          context = prompt + emitted - 1

A decode-only step then costs the same for 1 row and for 1,000. The other running requests are *loose* (in the middle
of a prompt, or a decode that got no token last step: `computed` and `emitted` are stored) or *exhausted* (last token
computed, seat and blocks not given back yet). Units: seconds, tokens, blocks; indices are positions in `requests`,
-1 is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.simulation.arrays import Ints
from planner.simulation.gaps import GAP_BINS
from planner.simulation.kernel.by_address import Layout, row_of
from planner.simulation.kernel.records import (
    DRAFT,
    KNOBS,
    NAME,
    NO_REQUEST,
    NODE,
    NOT_YET,
    NOW,
    PEAK,
    PLACE,
    PREFIX,
    RECORDED_STEPS,
    REQUEST,
    ROW,
    STEP_RECORD,
    Records,
)
from planner.simulation.luck import keys_of, threshold_of
from planner.simulation.prefix import PrefixBlocks
from planner.simulation.profile import ESTIMATES, MOST_ESTIMATED, NO_LIMIT, PREFILL_FIRST, RESERVES, Profile
from planner.simulation.time_bins import new_bins, no_bins
from planner.simulation.workload import Workload


class State(NamedTuple):
    """All arrays of a run. Seats: the most requests that can run at once."""

    knobs: Records  # KNOBS[1]
    now: Records  # NOW[1]
    requests: Records  # REQUEST[N], by arrival
    heap: Ints  # [N] priority: the queue, a heap of queue ranks
    by_rank: Ints  # [N] priority: the request of a queue rank
    victim_rank: Ints  # [N] priority: the largest is preempted
    loose: Ints  # [seats] in running order
    rows: Records  # ROW[seats] what this schedule gave to requests outside the steady set
    pending: Ints  # [2, seats + 1] exhausted in this schedule and the one before; entry 0 counts
    wheel: Ints  # [W > longest output] the first request that finishes at each tick modulo W
    crossings: Ints  # [block size] steady requests that need a new block, by phase
    peaks: Records  # PEAK[W] gaps of recent ticks that no later one exceeds, so falling
    gap_counts: Ints  # [GAP_BINS]
    in_queue: Ints  # [4] see saturation.py
    step_counts: Ints  # [3]
    step_busy_s: NDArray[np.float64]  # [3]
    bins: NDArray[np.float64]  # [bins, SUMS] see time_bins
    recorded_steps: Records  # STEP_RECORD[...]
    recorded_rows: Records  # ROW[...]
    recorded_preempted: Ints
    prefix: Records  # PREFIX[N]; this and the next have one element without prefix caching
    nodes: Records  # NODE[blocks]
    places: Records  # PLACE[...] the leading blocks that prompts share, request by request
    names: Records  # NAME[distinct blocks that prompts share]
    drafts: Records  # DRAFT[N]; one element without speculative decoding


STATE = Layout(
    State,
    {
        "knobs": KNOBS,
        "now": NOW,
        "requests": REQUEST,
        "heap": np.int64,
        "by_rank": np.int64,
        "victim_rank": np.int64,
        "loose": np.int64,
        "rows": ROW,
        "pending": (np.int64, 2),
        "wheel": np.int64,
        "crossings": np.int64,
        "peaks": PEAK,
        "gap_counts": np.int64,
        "in_queue": np.int64,
        "step_counts": np.int64,
        "step_busy_s": np.float64,
        "bins": (np.float64, 2),
        "recorded_steps": STEP_RECORD,
        "recorded_rows": ROW,
        "recorded_preempted": np.int64,
        "prefix": PREFIX,
        "nodes": NODE,
        "places": PLACE,
        "names": NAME,
        "drafts": DRAFT,
    },
)
state_at: Callable[[Ints, int], State] = row_of(STATE)


def build(
    workload: Workload,
    profile: Profile,
    *,
    count_steps: bool,
    record: bool,
    host_gap_s: float,
    bin_s: float = 0.0,
) -> State:
    """The state before the first schedule. `bin_s` > 0: with a time series in bins at first so wide."""
    count = len(workload.arrival_s)
    seats = max(1, min(profile.seats, count))
    requests = np.zeros(count, dtype=REQUEST)
    requests["arrival_s"] = workload.arrival_s
    requests["prompt"] = workload.prompt_tokens
    requests["output"] = workload.output_tokens
    requests["limit"] = np.minimum(workload.max_tokens, np.iinfo(np.int32).max)
    for name in (
        "first_scheduled_s",
        "first_token_s",
        "stamp",
        "next",
        "previous",
        "wheel_next",
        "wheel_previous",
    ):
        requests[name] = -1
    by_rank = np.lexsort((workload.tie, workload.arrival_s, workload.priority)).astype(np.int64)
    requests["queue_rank"][by_rank] = np.arange(count)
    knobs = knob_values(
        profile,
        seats,
        int(workload.max_tokens.max(initial=0)),
        count_steps=count_steps,
        record=record,
        host_gap_s=host_gap_s,
    )
    return state_of(
        knobs=knobs,
        now=before_the_first([profile], bin_s),
        requests=requests,
        by_rank=by_rank,
        victim_rank=dense_ranks(workload.priority, workload.arrival_s, by_rank, workload.victim_tie),
        longest_output=int(workload.output_tokens.max(initial=1)),
        prefix=_prefix(workload, profile),
        places=place_records(workload.prefix),
        distinct_blocks=workload.prefix.distinct,
        drafts=draft_records(profile, workload.kept),
    )


def before_the_first(profiles: Sequence[Profile], bin_s: float) -> Records:
    """NOW[replicas] before the first schedule."""
    now = np.zeros(len(profiles), dtype=NOW)
    now["free"] = now["least_free"] = now["fresh"] = [profile.num_blocks for profile in profiles]
    for name in (*NO_REQUEST, "first_free", "last_free", "spare"):
        now[name] = -1
    now["ratio"] = [profile.ratio for profile in profiles]
    now["bin_s"] = bin_s
    return now


def state_of(
    *,
    knobs: Records,
    now: Records,
    requests: Records,
    by_rank: Ints,
    victim_rank: Ints,
    longest_output: int,
    prefix: Records,
    places: Records,
    distinct_blocks: int,
    drafts: Records,
) -> State:
    """One replica's state, from what is its own and what several share. Pages of memory that stay unused cost
    nothing."""
    seats, caching, record = int(knobs["seats"][0]), bool(knobs["caching"][0]), bool(knobs["record"][0])
    wheel = 1 << (longest_output + 1).bit_length()
    room = 2 * seats if record else 1
    return State(
        knobs=knobs,
        now=now,
        requests=requests,
        heap=np.zeros(len(by_rank) if knobs["priority"][0] else 1, dtype=np.int64),
        by_rank=by_rank,
        victim_rank=victim_rank,
        loose=np.zeros(seats, dtype=np.int64),
        rows=np.zeros(seats, dtype=ROW),
        pending=np.zeros((2, seats + 1), dtype=np.int64),
        wheel=np.full(wheel, -1, dtype=np.int64),
        crossings=np.zeros(int(knobs["block_size"][0]), dtype=np.int64),
        peaks=np.zeros(wheel, dtype=PEAK),
        gap_counts=np.zeros(GAP_BINS, dtype=np.int64),
        in_queue=np.zeros(4, dtype=np.int64),
        step_counts=np.zeros(3, dtype=np.int64),
        step_busy_s=np.zeros(3, dtype=np.float64),
        bins=new_bins() if now["bin_s"][0] > 0.0 else no_bins(),
        recorded_steps=np.zeros(RECORDED_STEPS if record else 1, dtype=STEP_RECORD),
        recorded_rows=np.zeros(max(room, 16 * RECORDED_STEPS if record else 1), dtype=ROW),
        recorded_preempted=np.zeros(max(room, RECORDED_STEPS if record else 1), dtype=np.int64),
        prefix=prefix,
        nodes=np.zeros(int(knobs["num_blocks"][0]) + 1 if caching else 1, dtype=NODE),
        places=places,
        names=name_records(distinct_blocks),
        drafts=drafts,
    )


def _prefix(workload: Workload, profile: Profile) -> Records:
    if not profile.caching:
        return np.zeros(1, dtype=PREFIX)
    prefix = np.zeros(len(workload.arrival_s), dtype=PREFIX)
    prefix["shared_at"] = workload.prefix.offsets[:-1]
    prefix["shared"] = np.diff(workload.prefix.offsets)
    prefix["assumed"] = workload.assumed_blocks
    return prefix


def draft_records(profile: Profile, requests: Ints) -> Records:
    """DRAFT[N] for the requests at these positions of the input."""
    if profile.drafts == 0:
        return np.zeros(1, dtype=DRAFT)
    drafts = np.zeros(len(requests), dtype=DRAFT)
    drafts["settled"] = NOT_YET
    drafts["luck"] = keys_of(profile.luck_seed, requests)
    return drafts


def place_records(blocks: PrefixBlocks) -> Records:
    places = np.zeros(len(blocks.ids), dtype=PLACE)
    places["name"] = blocks.ids
    return places


def name_records(distinct: int) -> Records:
    names = np.zeros(distinct, dtype=NAME)
    names["first"] = -1
    return names


def knob_values(
    profile: Profile, seats: int, most_outputs: int, *, count_steps: bool, record: bool, host_gap_s: float
) -> Records:
    """KNOBS[1]; `most_outputs`: the largest limit of any request."""
    values = np.zeros(1, dtype=KNOBS)
    for name in (
        "time_share",
        "least_ratio",
        "ratio_decay",
        "budget",
        "block_size",
        "threshold",
        "adaptive",
        "interval",
        "watermark_blocks",
        "num_blocks",
        "chunked",
        "whole_prompt",
        "fewest_outputs",
        "decode_quota",
        "unit",
        "equal_progress",
        "mixed",
        "gap",
        "gap_least_decodes",
        "lag",
        "caching",
        "drafts",
        "lookahead",
        "named_ahead",
        "dropped_hits",
        "first_row_blocks",
    ):
        values[name] = getattr(profile, name)
    values["host_gap_s"] = host_gap_s + profile.draft_s
    values["accepted_below"] = threshold_of(profile.acceptance_rate)
    values["seats"] = seats
    values["priority"] = profile.by_priority
    values["reserves"] = profile.admission == RESERVES
    values["estimates"] = profile.admission == ESTIMATES
    values["spare"] = profile.spare_block
    limited = profile.decodes_limited and profile.assembler != PREFILL_FIRST
    values["decode_limit"] = profile.budget if limited else NO_LIMIT
    values["prefills_apart"] = profile.assembler == PREFILL_FIRST and not profile.mixed
    values["clips"] = most_outputs > MOST_ESTIMATED
    values["count_steps"] = count_steps
    values["record"] = record
    return values


def dense_ranks(
    priorities: Ints, arrivals_s: NDArray[np.float64], order: Ints, ties: Ints | None = None
) -> Ints:
    """Rank by (priority, arrival, tie), equal where all are; `order` sorts by them."""
    changes = np.zeros(len(order), dtype=np.bool_)
    for keys in (priorities, arrivals_s, *(() if ties is None else (ties,))):
        sorted_keys = keys[order]
        changes |= np.diff(sorted_keys, prepend=sorted_keys[:1]) != 0
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(changes)
    return ranks
