"""What a simulation writes down of a request, of the present, of blocks and steps: the fields of its records.

One record per request (`REQUEST`, two cache lines), one of counters (`NOW`), one of knobs (`KNOBS`), and small ones
for rows, recorded steps, the prefix cache and drafts. Units: seconds, tokens, blocks; indices are positions in
`requests`, -1 is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.simulation.profile import NO_LIMIT

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
        ("drafts", np.int64),
        ("lookahead", np.int64),
        ("named_ahead", np.int64),
        ("dropped_hits", np.int64),
        ("first_row_blocks", np.int64),
        ("accepted_below", np.int64),  # see luck.threshold_of
        ("prefills_apart", np.int64),  # no decodes beside prompts
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
        ("kv_block_s", np.float64),  # this to `held_seats`: see held
        ("held_since_s", np.float64),
        ("bin_s", np.float64),  # width of `bins`; 0: no time series
        ("held_blocks", np.int64),
        ("held_seats", np.int64),
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
        # speculative decoding only:
        ("verifications", np.int64),
        ("draft_tokens", np.int64),
        ("accepted_tokens", np.int64),
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
        ("own_dropped", np.int64),  # 1: beside them a block of its own is computed anew
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
        ("running", np.int64),
        ("waiting", np.int64),
    ]
)
PREFIX = np.dtype(
    [
        ("shared", np.int32),  # leading blocks of its prompt that other prompts have too
        ("held", np.int32),  # of those, the ones it holds by node: full and scheduled
        ("shared_at", np.int64),  # of its first shared block in `places`
        ("run", np.int64),  # the node of `own`
        ("own", np.int32),  # blocks of its run in the queue of free blocks, while it waits to be resumed
        ("assumed", np.int32),  # blocks taken to be cached at its first admission
        ("unknown", np.int32),  # exhausted: computed tokens whose content is still in flight
        ("hit_tokens", np.int64),
        ("rehit_tokens", np.int64),
        ("pool_hit_tokens", np.int64),  # this and the following: in a cluster, see cluster_pool
        ("fetched_from", np.int32),  # these blocks of its prompt were fetched, up to ...
        ("fetched_to", np.int32),  # ... but not this one
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
PLACE = np.dtype(
    [
        ("name", np.int32),  # the block's name, below the number of names
        ("node", np.int32),  # the node by which it is held
    ]
)
NAME = np.dtype(
    [
        ("first", np.int32),  # the oldest cached copy of that block, -1 none
        ("last", np.int32),  # the newest
    ]
)
NOT_YET = -2  # no schedule
DRAFT = np.dtype(
    [
        ("luck", np.uint64),  # see luck.keys_of
        (
            "held",
            np.int32,
        ),  # blocks: those of rejected drafts are kept, so they do not follow from its progress
        ("drafts", np.int32),  # to be checked by its next row
        ("ahead", np.int32),  # drafts of its last row that will be rejected
        ("unaware", np.int32),  # exhausted, but the scheduler cannot know yet: it gets one more row
        # this and the following: asynchronously, what is in flight, for the prefix cache
        ("accepted", np.int32),  # drafts of its last row
        ("known_late", np.int32),  # at that row's schedule a token was in flight as well
        ("settled", np.int64),  # schedule of its last row that emitted
    ],
    align=True,
)
NO_REQUEST = ("head", "tail", "first", "last", "newly_staged", "last_staged", "first_ready", "last_ready")
RECORDED_STEPS = 4096
