"""Everything that a cluster knows, as flat arrays: many replicas' `State`, and what lies between them.

Every array of `State` is there once for all replicas, with the replica as its first axis; `replica_state` cuts
one replica's out. What lies between them is apart (`Between`): functions that make no schedule see only that, which
keeps machine code and compile time small. All replicas share one array of requests, with one record for each side's
part in a request, its *leg*: the decode leg of request i at position i, the prefill leg at count + i. A prefill leg
has one output token. A decode leg that takes over a hand-off starts with one emitted token (pull: really the prompt's
last, so the prompt is one shorter and the outputs are one more).
Seconds, tokens, blocks, bytes; -1 is none, or not yet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.scalar import StepTimeArrays
from calibration.transfer import TransferArrays
from planner.simulation.arrays import Ints
from planner.simulation.kernel.compiled import inlined
from planner.simulation.kernel.state import Records, State

Floats = NDArray[np.float64]

WAY = np.dtype(
    [
        ("arrival_s", np.float64),
        ("transfer_start_s", np.float64),
        ("kv_ready_s", np.float64),
        ("moved_bytes", np.float64),
        ("transfer_bytes", np.float64),  # this and the following: of the transfer on its way
        ("alone_bytes_per_s", np.float64),
        ("left_bytes", np.float64),  # at updated_s
        ("rate_bytes_per_s", np.float64),
        ("updated_s", np.float64),
        ("ends_s", np.float64),
        ("prompt", np.int32),
        ("output", np.int32),
        ("sender", np.int32),  # the prefill replica
        ("receiver", np.int32),  # the decode replica, by its position in its pool
        ("transfer_tokens", np.int32),
        ("transfers", np.int32),  # how many were begun: the number of the last
        ("on_its_way", np.int32),  # NO_TRANSFER, IN_LATENCY, ON_LINKS
        ("staged", np.int32),
        ("stagings", np.int32),
        ("abandoned", np.int32),
        ("computed_tokens", np.int32),  # push
        ("moved_tokens", np.int32),  # push
        ("prefill_sent", np.int32),  # push
        ("prefill_over", np.int32),
        ("handed_over", np.int32),  # it has a prefill leg
        ("fits", np.int32),
        ("refusal", np.int32),
        ("lost_kv", np.int32),
        ("rate_set", np.int32),  # used while links are shared out
    ],
    align=True,
)
NO_TRANSFER, IN_LATENCY, ON_LINKS = 0, 1, 2
LEG = np.dtype(
    [
        ("entered_s", np.float64),
        ("rest_s", np.float64),
        ("entry", np.int64),
        ("replica", np.int32),
        ("seen_waiting", np.int32),
        ("held", np.int32),  # prefill side: blocks kept after the end
        ("queued", np.int32),
        ("took_over", np.int32),  # decode side: it is among the committed
    ],
    align=True,
)
REPLICA = np.dtype(
    [
        ("outstanding_tokens", np.int64),
        ("queued", np.int64),
        ("queued_tokens", np.int64),
        ("sent", np.int64),
        ("model", np.int64),
        ("asleep", np.int64),
        ("resting", np.int64),
        ("lost", np.int64),
    ]
)
EVENT = np.dtype(
    [
        ("time_s", np.float64),
        ("number", np.int64),
        ("kind", np.int32),
        ("subject", np.int32),
        ("tokens", np.int32),
        ("mark", np.int32),
        ("again", np.int32),
    ],
    align=True,
)
LINK = np.dtype(
    [
        ("capacity_bytes_per_s", np.float64),
        ("busy_since_s", np.float64),
        ("busy_s", np.float64),
        ("bytes", np.float64),
        ("free_bytes_per_s", np.float64),  # this and the following are used while it is shared out
        ("without_rate", np.int64),
        ("active", np.int64),
        ("transfers", np.int64),
    ]
)
RUN = np.dtype(
    [
        ("think_s", np.float64),
        ("bytes_per_token", np.float64),
        ("message_s", np.float64),
        ("lease_s", np.float64),
        ("next_end_s", np.float64),  # of the transfers on links
        ("over_s", np.float64),  # when the last of those that are over was, or will be
        ("next_end", np.int64),  # its place in `active`
        ("active", np.int64),
        ("count", np.int64),
        ("prefill", np.int64),  # replicas
        ("decode", np.int64),
        ("mode", np.int64),
        ("chunk_tokens", np.int64),
        ("lease_ends", np.int64),
        ("closed_loop", np.int64),
        ("tell_finished", np.int64),  # as events: somebody is to know at the time
        ("arrivals_count", np.int64),  # arrivals may touch decode replicas
        ("queue_limited", np.int64),
        ("queue_requests", np.int64),
        ("queue_tokens", np.int64),
        ("warm_up_requests", np.int64),
        ("prefill_by_tokens", np.int64),  # routers
        ("decode_by_tokens", np.int64),
        ("prefill_turn", np.int64),
        ("decode_turn", np.int64),
        ("arrived", np.int64),
        ("sent", np.int64),  # closed loop
        ("over", np.int64),
        ("events", np.int64),
        ("numbered", np.int64),
        ("entries", np.int64),
        ("record", np.int64),
    ]
)


class Between(NamedTuple):
    """What is not one replica's alone, for R replicas (prefill first), N requests, L legs.

    With `knobs`, `now`, `requests` and `heap` under State's names, so that queues can be reached without the rest.
    """

    run: Records  # RUN[1]
    ways: Records  # WAY[N]
    legs: Records  # LEG[L]
    replicas: Records  # REPLICA[R]
    next_s: Floats  # [R] each replica's next schedule; inf asleep
    events: Records  # EVENT[...] a heap
    active: Ints  # [N] requests whose transfers are on links, in the order of joining
    links: Records  # LINK[...]
    paths: NDArray[np.int32]  # [P, D, 4] links between two replicas, -1 to fill up
    table: TransferArrays
    knobs: Records  # KNOBS[R]
    now: Records  # NOW[R]
    requests: Records  # REQUEST[L], shared
    heap: Ints  # [R, ...]


class Cluster(NamedTuple):
    """All arrays of a run; those below `model_ends` are State's, with a first axis R."""

    between: Between
    models: StepTimeArrays  # of all kinds of replica, one after the other
    model_ends: Ints  # [kinds + 1, fields] where each one's begin and end
    by_rank: Ints  # [2, N] decode, prefill
    victim_rank: Ints  # [L], shared
    loose: Ints
    rows: Records
    pending: Ints
    wheel: Ints
    crossings: Ints
    peaks: Records
    gap_counts: Ints
    in_queue: Ints
    step_counts: Ints
    step_busy_s: Floats
    recorded_steps: Records
    recorded_rows: Records
    recorded_preempted: Ints
    prefix: Records  # this and the following: prefix caching is off
    nodes: Records
    shared: Records


class Queue(NamedTuple):
    """What the functions of `queue` and `decode_side` need of a replica's State."""

    knobs: Records
    now: Records
    requests: Records
    heap: Ints


@inlined
def replica_queue(between: Between, r: int) -> State:
    """In the place of a State, for functions that need no more."""
    return Queue(  # type: ignore[return-value]
        between.knobs[r : r + 1], between.now[r : r + 1], between.requests, between.heap[r]
    )


@inlined
def replica_state(cluster: Cluster, r: int) -> State:
    """One replica's arrays."""
    between = cluster.between
    return State(
        between.knobs[r : r + 1],
        between.now[r : r + 1],
        between.requests,
        between.heap[r],
        cluster.by_rank[1 if r < between.run[0].prefill else 0],
        cluster.victim_rank,
        cluster.loose[r],
        cluster.rows[r],
        cluster.pending[r],
        cluster.wheel[r],
        cluster.crossings[r],
        cluster.peaks[r],
        cluster.gap_counts[r],
        cluster.in_queue[r],
        cluster.step_counts[r],
        cluster.step_busy_s[r],
        cluster.recorded_steps[r],
        cluster.recorded_rows[r],
        cluster.recorded_preempted[r],
        cluster.prefix,
        cluster.nodes,
        cluster.shared,
    )


@inlined
def replica_model(cluster: Cluster, r: int) -> StepTimeArrays:
    """How long one replica's steps take: its part of `models`, field by field."""
    m, kind = cluster.models, cluster.between.replicas[r].model
    a, b = cluster.model_ends[kind], cluster.model_ends[kind + 1]
    return StepTimeArrays(
        m.low[a[0] : b[0]],
        m.high[a[1] : b[1]],
        m.theta[a[2] : b[2]],
        m.decode_tokens_s[a[3] : b[3]],
        m.chunk_tokens_s[a[4] : b[4]],
        m.residual_s[a[5] : b[5]],
        m.check_decode_s[a[6] : b[6]],
        m.check_chunk_s[a[7] : b[7]],
        m.check[a[8] : b[8]],
        m.decode_context_low[a[9] : b[9]],
        m.decode_context_high[a[10] : b[10]],
        m.log_tokens[a[11] : b[11]],
        m.facets[a[12] : b[12]],
    )
