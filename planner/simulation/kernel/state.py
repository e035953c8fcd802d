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

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.simulation.arrays import Ints
from planner.simulation.gaps import GAP_BINS
from planner.simulation.prefix import PrefixBlocks
from planner.simulation.profile import ESTIMATES, MOST_ESTIMATED, NO_LIMIT, PREFILL_FIRST, RESERVES, Profile
from planner.simulation.workload import Workload

Records = NDArray[Any]
Record = Any  # one element of Records: its fields are attributes in compiled code

WAITING, LOOSE, STEADY, EXHAUSTED, DONE = 0, 1, 2, 3, 4
REMOTE, STAGED, READY = 5, 6, 7  # taken over from a prefill replica, see decode_side
NO_CAP = NO_LIMIT

REQUEST = np.dtype(
    [
        ("arrival_s", np.float64),
        ("first_scheduled_s", np.float64),  # -1 until then, like first_token_s
        ("first_token_s", np.float64),
        ("last_token_s", np.float64),  # current only outside the steady set
        ("max_gap_s", np.float64),  # the same
        ("chunks_s", np.float64),  # time of the steps that computed its prompt
        ("finish_tick", np.int64),  # steady: the tick after its last token
        ("join_tick", np.int64),  # steady: the tick at which it joined
        ("stamp", np.int64),  # last schedule that gave it tokens
        ("prompt", np.int32),
        ("output", np.int32),
        ("limit", np.int32),  # most outputs the client asked for
        ("computed", np.int32),
        ("emitted", np.int32),  # outside the steady set
        ("take", np.int32),  # tokens in schedule `stamp`
        ("state", np.int32),
        ("mid_prefill", np.int32),
        ("preemptions", np.int32),
        ("next", np.int32),  # in the running list, in order of admission, or in the queue
        ("previous", np.int32),
        ("wheel_next", np.int32),  # requests that finish at the same tick
        ("wheel_previous", np.int32),
        ("queue_rank", np.int32),  # priority: place in the order of the queue
    ],
    align=True,
)
KNOBS = np.dtype(
    [
        ("host_gap_s", np.float64),
        ("time_share", np.float64),
        ("least_ratio", np.float64),
        ("ratio_decay", np.float64),
        ("budget", np.int64),
        ("seats", np.int64),
        ("block_size", np.int64),
        ("threshold", np.int64),
        ("adaptive", np.int64),
        ("interval", np.int64),
        ("priority", np.int64),
        ("watermark_blocks", np.int64),
        ("num_blocks", np.int64),
        ("chunked", np.int64),
        ("reserves", np.int64),
        ("whole_prompt", np.int64),
        ("spare", np.int64),  # free blocks that a decode asks for at least
        ("fewest_outputs", np.int64),
        ("decode_quota", np.int64),
        ("decode_limit", np.int64),
        ("unit", np.int64),
        ("equal_progress", np.int64),
        ("mixed", np.int64),
        ("estimates", np.int64),
        ("clips", np.int64),  # somebody's outputs are more than an estimate counts
        ("gap", np.int64),
        ("gap_least_decodes", np.int64),
        ("lag", np.int64),
        ("count_steps", np.int64),
        ("record", np.int64),
        ("caching", np.int64),
        ("reserved_blocks", np.int64),  # this and the following matter to decode_side only
        ("reserve_outputs", np.int64),
        ("most_staged", np.int64),  # 0: any number
    ]
)
NOW = np.dtype(
    [
        ("scheduled_s", np.float64),  # of the schedule being made, or of the last one
        ("start_s", np.float64),
        ("end_s", np.float64),  # end of the last schedule's work
        ("end_before_s", np.float64),  # end of the one before
        ("steady_end_s", np.float64),  # when the steady requests emitted last
        ("busy_s", np.float64),
        ("uncovered_s", np.float64),
        ("idle_late_s", np.float64),
        ("shared_s", np.float64),  # shares of time: since prompts and decodes have had work together
        ("prefill_s", np.float64),
        ("ratio", np.float64),  # of the estimate
        ("schedules", np.int64),
        ("empty_schedules", np.int64),
        ("uncovered_steps", np.int64),
        ("computed_tokens", np.int64),
        ("decode_rows", np.int64),
        ("all_rows", np.int64),
        ("peak_running", np.int64),
        ("least_free", np.int64),
        ("arrived", np.int64),
        ("finished", np.int64),
        ("free", np.int64),  # blocks
        ("running", np.int64),
        ("head", np.int64),
        ("tail", np.int64),
        ("waiting", np.int64),
        ("first", np.int64),  # of the queue, -1: nobody waits; not kept by priority
        ("last", np.int64),
        ("queued", np.int64),  # priority: entries of `heap`
        ("tick", np.int64),
        ("phase", np.int64),  # tick modulo block size
        ("steady", np.int64),
        ("steady_context", np.int64),  # sum over the steady set
        ("steady_to_come", np.int64),  # sum over the steady set of limit - emitted + tick
        ("paused", np.int64),  # the steady set gets no token in this schedule
        ("longest", np.int64),  # largest context - tick in the steady set
        ("longest_stale", np.int64),
        ("mid_prefill", np.int64),
        ("loose", np.int64),
        ("rows", np.int64),
        ("admitted", np.int64),  # first row admitted in this schedule
        ("budget", np.int64),  # what this schedule has left
        ("tokens", np.int64),  # what it has given
        ("preempted", np.int64),  # in this schedule
        ("all_served", np.int64),  # every decode has its token in this schedule
        ("walked", np.int64),  # decodes were served one by one in this schedule
        ("sharing", np.int64),  # prompts and decodes have work in this schedule
        ("reserved", np.int64),  # blocks for the whole future of the running requests
        ("shut", np.int64),  # nobody is admitted until a request leaves
        ("gap_left", np.int64),
        ("in_gap", np.int64),  # this schedule was of decodes only, by the cadence
        ("executed", np.int64),
        ("last_prefill_step", np.int64),
        ("capacity_bound", np.int64),
        ("peaks_first", np.int64),
        ("peaks_last", np.int64),
        ("recorded_steps", np.int64),
        ("recorded_rows", np.int64),
        ("recorded_preempted", np.int64),
        ("staged", np.int64),  # this to `committed`: see decode_side
        ("newly_staged", np.int64),  # the first, in this schedule
        ("last_staged", np.int64),
        ("ready", np.int64),
        ("first_ready", np.int64),
        ("last_ready", np.int64),
        ("committed", np.int64),
        # prefix cache only:
        ("fresh", np.int64),  # free blocks without a name
        ("listed", np.int64),  # free blocks with one: those of the queue's nodes
        ("first_free", np.int64),  # node of the queue of free blocks that is taken first
        ("last_free", np.int64),
        ("spare", np.int64),  # first node given back
        ("nodes", np.int64),  # how many were ever used
        ("turns", np.int64),
        ("learned", np.int64),  # rows of this schedule whose blocks can be hit
        ("hit_tokens", np.int64),  # what the last look-up found, see prefix.look_up
        ("shared_hits", np.int64),
        ("own_hits", np.int64),
        ("live_hits", np.int64),
    ]
)
ROW = np.dtype([("request", np.int64), ("take", np.int64), ("cached", np.int64), ("decode", np.int64)])
PEAK = np.dtype([("tick", np.int64), ("gap_s", np.float64)])
STEP_RECORD = np.dtype(
    [
        ("scheduled_s", np.float64),
        ("start_s", np.float64),
        ("end_s", np.float64),
        ("rows", np.int64),
        ("preempted", np.int64),
        ("free_blocks", np.int64),
    ]
)
PREFIX = np.dtype(
    [
        ("shared", np.int32),  # leading blocks of its prompt that other prompts have too
        ("held", np.int32),  # of those, the ones it holds by node: full and scheduled
        ("shared_at", np.int64),  # of its first shared block in `shared`
        ("run", np.int64),  # the node of `own`
        ("own", np.int32),  # blocks of its run in the queue of free blocks, while it waits to be resumed
        ("assumed", np.int32),  # blocks taken to be cached at its first admission
        ("unknown", np.int32),  # exhausted: computed tokens whose content is still in flight
        ("hit_tokens", np.int64),
        ("rehit_tokens", np.int64),
        ("turn", np.int64),  # counts admissions: the order of the running list
    ],
    align=True,
)
NODE = np.dtype(
    [
        ("name", np.int32),  # of a shared block; -1: a run of blocks that only one request ever had
        ("holders", np.int32),  # shared: how many requests hold it; 0 in the queue
        ("twin", np.int32),  # shared: the next copy of the same block
        ("owner", np.int32),  # run: the waiting request that can hit it, or -1
        ("count", np.int32),  # blocks
        ("next", np.int32),  # in the queue
        ("previous", np.int32),
    ]
)
SHARED = np.dtype(
    [
        ("name", np.int32),  # by place: the block's name, below the number of names
        ("node", np.int32),  # by place: the node by which it is held
        ("first", np.int32),  # by name: the oldest cached copy, -1 none
        ("last", np.int32),  # by name: the newest
    ]
)
NO_REQUEST = ("head", "tail", "first", "last", "newly_staged", "last_staged", "first_ready", "last_ready")
RECORDED_STEPS = 4096


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
    recorded_steps: Records  # STEP_RECORD[...]
    recorded_rows: Records  # ROW[...]
    recorded_preempted: Ints
    prefix: Records  # PREFIX[N]; this and the next have one element without prefix caching
    nodes: Records  # NODE[blocks]
    shared: Records  # SHARED[...] the leading blocks that prompts share, request by request


def build(
    workload: Workload, profile: Profile, *, count_steps: bool, record: bool, host_gap_s: float
) -> State:
    """The state before the first schedule."""
    count = len(workload.arrival_s)
    seats = max(1, min(profile.seats, count))
    wheel = 1 << int(workload.output_tokens.max(initial=1) + 1).bit_length()
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
    now = np.zeros(1, dtype=NOW)
    now["free"] = now["least_free"] = profile.num_blocks
    for name in NO_REQUEST:
        now[name] = -1
    now["ratio"] = profile.ratio
    now["fresh"] = profile.num_blocks
    now["first_free"] = now["last_free"] = now["spare"] = -1
    room = 2 * seats if record else 1
    return State(
        knobs=knob_values(
            profile,
            seats,
            int(workload.max_tokens.max(initial=0)),
            count_steps=count_steps,
            record=record,
            host_gap_s=host_gap_s,
        ),
        now=now,
        requests=requests,
        heap=np.zeros(count, dtype=np.int64),
        by_rank=by_rank,
        victim_rank=dense_ranks(workload.priority, workload.arrival_s, by_rank),
        loose=np.zeros(seats, dtype=np.int64),
        rows=np.zeros(seats, dtype=ROW),
        pending=np.zeros((2, seats + 1), dtype=np.int64),
        wheel=np.full(wheel, -1, dtype=np.int64),
        crossings=np.zeros(profile.block_size, dtype=np.int64),
        peaks=np.zeros(wheel, dtype=PEAK),
        gap_counts=np.zeros(GAP_BINS, dtype=np.int64),
        in_queue=np.zeros(4, dtype=np.int64),
        step_counts=np.zeros(3, dtype=np.int64),
        step_busy_s=np.zeros(3, dtype=np.float64),
        recorded_steps=np.zeros(RECORDED_STEPS if record else 1, dtype=STEP_RECORD),
        recorded_rows=np.zeros(max(room, 16 * RECORDED_STEPS if record else 1), dtype=ROW),
        recorded_preempted=np.zeros(max(room, RECORDED_STEPS if record else 1), dtype=np.int64),
        prefix=_prefix(workload, profile),
        nodes=np.zeros(
            profile.num_blocks + 1 if profile.caching else 1, dtype=NODE
        ),  # unused pages cost nothing
        shared=_shared(workload.prefix),
    )


def _prefix(workload: Workload, profile: Profile) -> Records:
    if not profile.caching:
        return np.zeros(1, dtype=PREFIX)
    prefix = np.zeros(len(workload.arrival_s), dtype=PREFIX)
    prefix["shared_at"] = workload.prefix.offsets[:-1]
    prefix["shared"] = np.diff(workload.prefix.offsets)
    prefix["assumed"] = workload.assumed_blocks
    return prefix


def _shared(blocks: PrefixBlocks) -> Records:
    shared = np.zeros(max(len(blocks.ids), blocks.distinct), dtype=SHARED)
    shared["name"][: len(blocks.ids)] = blocks.ids
    shared["first"] = -1
    return shared


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
    ):
        values[name] = getattr(profile, name)
    values["host_gap_s"] = host_gap_s
    values["seats"] = seats
    values["priority"] = profile.by_priority
    values["reserves"] = profile.admission == RESERVES
    values["estimates"] = profile.admission == ESTIMATES
    values["spare"] = profile.spare_block
    limited = profile.decodes_limited and profile.assembler != PREFILL_FIRST
    values["decode_limit"] = profile.budget if limited else NO_LIMIT
    values["clips"] = most_outputs > MOST_ESTIMATED
    values["count_steps"] = count_steps
    values["record"] = record
    return values


def dense_ranks(priorities: Ints, arrivals_s: NDArray[np.float64], order: Ints) -> Ints:
    """Rank by (priority, arrival), equal where both are; `order` sorts by them."""
    priority, arrival_s = priorities[order], arrivals_s[order]
    changes = (np.diff(priority, prepend=priority[:1]) != 0) | (
        np.diff(arrival_s, prepend=arrival_s[:1]) != 0
    )
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(changes)
    return ranks
