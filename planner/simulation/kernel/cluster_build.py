"""The arrays of a cluster before its first event. Memory is O(requests): what a replica never uses of its longest
possible queue is never touched, and costs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation.arrays import Ints
from planner.simulation.cluster.deployment import AFTER_PREFILL, PULL, PUSH_CHUNKS, ROUND_ROBIN
from planner.simulation.cluster.links import MOST_LINKS, Topology, topology_of
from planner.simulation.cluster.order import ARRIVAL, LOST
from planner.simulation.cluster.rules import NO_LIMIT, Rules
from planner.simulation.cluster.workload import Requests
from planner.simulation.gaps import GAP_BINS
from planner.simulation.kernel.cluster_state import (
    EVENT,
    LEG,
    LINK,
    REPLICA,
    RUN,
    WAY,
    Between,
    Cluster,
    Floats,
)
from planner.simulation.kernel.hand_off import AFTER_PREFILL_MODE, PULL_MODE, PUSH_MODE
from planner.simulation.kernel.state import (
    NO_REQUEST,
    NODE,
    NOW,
    PEAK,
    PREFIX,
    RECORDED_STEPS,
    REQUEST,
    ROW,
    SHARED,
    STEP_RECORD,
    Records,
    dense_ranks,
    knob_values,
)

MODES = {AFTER_PREFILL: AFTER_PREFILL_MODE, PULL: PULL_MODE, PUSH_CHUNKS: PUSH_MODE}


def build_cluster(requests: Requests, rules: Rules, *, record: bool) -> Cluster:
    count, replicas = len(requests), len(rules.replicas)
    handed = requests.handed_over
    legs, by_rank, victim_rank = _legs(requests, rules, handed)
    knobs = np.concatenate([_knobs(rules, r, requests, record=record) for r in range(replicas)])
    seats = int(knobs["seats"].max())
    wheel = 1 << int(legs["output"].max(initial=1) + 1).bit_length()
    now = np.zeros(replicas, dtype=NOW)
    now["free"] = now["least_free"] = knobs["num_blocks"]
    now["ratio"] = [replica.knobs.profile.ratio for replica in rules.replicas]
    for name in NO_REQUEST:
        now[name] = -1
    models, model_ends, kinds = _models(rules)
    of_replica = np.zeros(replicas, dtype=REPLICA)
    of_replica["model"] = kinds
    of_replica["asleep"] = of_replica["resting"] = 1
    run = _run(rules, requests, record=record)
    heap = count if any(replica.knobs.profile.by_priority for replica in rules.replicas) else 1
    topology = topology_of(rules)
    room = 2 * seats if record else 1
    return Cluster(
        between=Between(
            run=run,
            ways=_ways(requests, handed),
            legs=_leg_accounts(len(legs)),
            replicas=of_replica,
            next_s=np.full(replicas, np.inf),
            events=_events(rules, run, count),
            active=np.zeros(count, dtype=np.int64),
            links=_links(topology),
            paths=_paths(topology, rules),
            table=rules.network.table.arrays(),
            knobs=knobs,
            now=now,
            requests=legs,
            heap=np.zeros((replicas, heap), dtype=np.int64),
        ),
        models=models,
        model_ends=model_ends,
        by_rank=by_rank,
        victim_rank=victim_rank,
        loose=np.zeros((replicas, seats), dtype=np.int64),
        rows=np.zeros((replicas, seats), dtype=ROW),
        pending=np.zeros((replicas, 2, seats + 1), dtype=np.int64),
        wheel=np.full((replicas, wheel), -1, dtype=np.int64),
        crossings=np.zeros((replicas, int(knobs["block_size"].max())), dtype=np.int64),
        peaks=np.zeros((replicas, wheel), dtype=PEAK),
        gap_counts=np.zeros((replicas, GAP_BINS), dtype=np.int64),
        in_queue=np.zeros((replicas, 4), dtype=np.int64),
        step_counts=np.zeros((replicas, 3), dtype=np.int64),
        step_busy_s=np.zeros((replicas, 3), dtype=np.float64),
        recorded_steps=np.zeros((replicas, RECORDED_STEPS if record else 1), dtype=STEP_RECORD),
        recorded_rows=np.zeros((replicas, max(room, 16 * RECORDED_STEPS if record else 1)), dtype=ROW),
        recorded_preempted=np.zeros((replicas, max(room, RECORDED_STEPS if record else 1)), dtype=np.int64),
        prefix=np.zeros(1, dtype=PREFIX),
        nodes=np.zeros(1, dtype=NODE),
        shared=np.zeros(1, dtype=SHARED),
    )


def _legs(requests: Requests, rules: Rules, handed: NDArray[np.bool_]) -> tuple[Records, Ints, Ints]:
    """REQUEST[L]; the order in which priority queues take each side's, int64[2, N]; ranks of victims, int64[L]."""
    count = len(requests)
    legs = np.zeros(2 * count if rules.prefill else count, dtype=REQUEST)
    for name in (
        "first_scheduled_s",
        "first_token_s",
        "last_token_s",
        "stamp",
        "next",
        "previous",
        "wheel_next",
        "wheel_previous",
    ):
        legs[name] = -1
    decode, prefill = legs[:count], legs[count:]
    pulled = handed & rules.pulled
    decode["prompt"] = requests.prompt_tokens - pulled
    decode["output"] = requests.output_tokens + pulled
    decode["limit"] = np.minimum(requests.max_tokens, np.iinfo(np.int32).max - 1) + pulled
    decode["emitted"] = handed
    prefill["prompt"] = requests.prompt_tokens[: len(prefill)]
    prefill["output"] = prefill["limit"] = 1
    order = np.lexsort((np.arange(count), requests.order_s, requests.priority)).astype(np.int64)
    for side in (decode, prefill):
        if len(side):
            side["queue_rank"][order] = np.arange(count)
    ranks = dense_ranks(requests.priority, requests.order_s, order)
    return legs, np.stack([order, order + count]), np.concatenate([ranks, ranks])


def _ways(requests: Requests, handed: NDArray[np.bool_]) -> Records:
    ways = np.zeros(len(requests), dtype=WAY)
    ways["arrival_s"] = requests.arrival_s
    ways["transfer_start_s"] = ways["kv_ready_s"] = -1.0
    ways["prompt"] = requests.prompt_tokens
    ways["output"] = requests.output_tokens
    ways["sender"] = ways["receiver"] = -1
    ways["handed_over"] = handed
    ways["fits"] = requests.fits
    return ways


def _leg_accounts(count: int) -> Records:
    accounts = np.zeros(count, dtype=LEG)
    for name in ("entry", "replica", "entered_s"):
        accounts[name] = -1
    return accounts


def _knobs(rules: Rules, r: int, requests: Requests, *, record: bool) -> Records:
    replica, hand_off = rules.replicas[r], rules.hand_off
    profile = replica.knobs.profile
    seats = max(1, min(profile.seats, len(requests)))
    most = int(requests.max_tokens.max(initial=0)) + 1
    values = knob_values(
        profile, seats, most, count_steps=False, record=record, host_gap_s=replica.host_gap_s
    )
    if r >= len(rules.prefill) and rules.prefill:
        values["reserved_blocks"] = -(-hand_off.reserved_tokens // profile.block_size)
        values["reserve_outputs"] = hand_off.reserve_outputs
        values["most_staged"] = hand_off.staging_requests
    return values


def _run(rules: Rules, requests: Requests, *, record: bool) -> Records:
    hand_off = rules.hand_off
    decode_by_tokens = rules.decode_router != ROUND_ROBIN
    local = not requests.handed_over.all()
    run = np.zeros(1, dtype=RUN)
    values: dict[str, Any] = {
        "think_s": rules.think_s,
        "bytes_per_token": hand_off.bytes_per_token,
        "message_s": hand_off.message_s,
        "lease_s": hand_off.lease_s if hand_off.lease_ends else 0.0,
        "next_end_s": np.inf,
        "count": len(requests),
        "prefill": len(rules.prefill),
        "decode": len(rules.decode),
        "mode": MODES[hand_off.mode],
        "chunk_tokens": hand_off.chunk_tokens,
        "lease_ends": hand_off.lease_ends,
        "closed_loop": rules.closed_loop,
        "tell_finished": rules.closed_loop or decode_by_tokens,
        "arrivals_count": local or hand_off.mode == PUSH_CHUNKS or rules.warm_up_requests > 0,
        "queue_limited": rules.queue_requests < NO_LIMIT or rules.queue_tokens < NO_LIMIT,
        "queue_requests": rules.queue_requests,
        "queue_tokens": rules.queue_tokens,
        "warm_up_requests": rules.warm_up_requests,
        "prefill_by_tokens": rules.prefill_router != ROUND_ROBIN,
        "decode_by_tokens": decode_by_tokens,
        "record": record,
    }
    for name, value in values.items():
        run[name] = value
    return run


def _events(rules: Rules, run: Records, count: int) -> Records:
    """Room for what can be under way at once, and the losses and first clients in order."""
    first: list[tuple[float, int, int]] = [
        (loss.time_s, LOST, len(rules.prefill) + loss.replica) for loss in rules.losses
    ]
    clients = min(rules.concurrency, count)
    first = [(0.0, ARRIVAL, i) for i in range(clients)] + first  # a heap: time 0 comes first
    first.sort()
    events = np.zeros(16 + len(first) + (8 + 2 * len(rules.losses)) * count, dtype=EVENT)
    for number, (time_s, kind, subject) in enumerate(first):
        event = events[number]
        event["time_s"], event["kind"], event["subject"], event["number"] = time_s, kind, subject, number
    run["events"] = run["numbered"] = len(first)
    run["sent"] = clients
    return events


def _links(topology: Topology) -> Records:
    links = np.zeros(len(topology.names), dtype=LINK)
    links["capacity_bytes_per_s"] = topology.bytes_per_s
    return links


def _paths(topology: Topology, rules: Rules) -> NDArray[np.int32]:
    paths = np.full((max(1, len(rules.prefill)), len(rules.decode), MOST_LINKS), -1, dtype=np.int32)
    for p, row in enumerate(topology.paths):
        for d, path in enumerate(row):
            paths[p, d, : len(path)] = path
    return paths


def _models(rules: Rules) -> tuple[StepTimeArrays, Ints, list[int]]:
    """All step-time models one after the other, where each begins and ends, and which one each replica has."""
    distinct: list[StepTimeArrays] = []
    kinds = []
    for replica in rules.replicas:
        same = [kind for kind, model in enumerate(distinct) if model is replica.step_time]
        kinds.append(same[0] if same else len(distinct))
        if not same:
            distinct.append(replica.step_time)
    columns: list[Floats] = [np.concatenate(column) for column in zip(*distinct, strict=True)]
    lengths = np.array([[len(field) for field in model] for model in distinct], dtype=np.int64)
    ends = np.concatenate([np.zeros((1, lengths.shape[1]), dtype=np.int64), np.cumsum(lengths, axis=0)])
    return StepTimeArrays(*columns), ends, kinds
