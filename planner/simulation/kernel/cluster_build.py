"""The arrays of a cluster before its first event. Memory is O(requests)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation.arrays import Ints
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    LEAST_TOKENS,
    PREFIX_AWARE,
    PULL,
    PUSH_CHUNKS,
    ROUND_ROBIN,
)
from planner.simulation.cluster.links import MOST_LINKS, Topology, topology_of
from planner.simulation.cluster.order import ARRIVAL, LOST
from planner.simulation.cluster.rules import NO_LIMIT, Rules, speculating_profile
from planner.simulation.cluster.workload import Requests
from planner.simulation.kernel.cluster_records import (
    AFTER_PREFILL_MODE,
    EVENT,
    LEG,
    LINK,
    POOL,
    POOL_ENTRY,
    PULL_MODE,
    PUSH_MODE,
    REPLICA,
    RUN,
    WAY,
)
from planner.simulation.kernel.cluster_replicas import BY_PREFIX, BY_TOKENS, IN_TURN
from planner.simulation.kernel.cluster_state import BETWEEN, Between, Cluster
from planner.simulation.kernel.records import PREFIX, REQUEST, Records
from planner.simulation.kernel.state import (
    STATE,
    before_the_first,
    dense_ranks,
    draft_records,
    knob_values,
    place_records,
    state_of,
)
from planner.simulation.kernel.step_time import MODEL, TABLE, as_floats

MODES = {AFTER_PREFILL: AFTER_PREFILL_MODE, PULL: PULL_MODE, PUSH_CHUNKS: PUSH_MODE}
ROUTERS = {"": IN_TURN, ROUND_ROBIN: IN_TURN, LEAST_TOKENS: BY_TOKENS, PREFIX_AWARE: BY_PREFIX}


def build_cluster(requests: Requests, rules: Rules, *, record: bool, bin_s: float = 0.0) -> Cluster:
    count, replicas = len(requests), len(rules.replicas)
    handed = requests.handed_over
    legs, by_rank, victim_rank = _legs(requests, rules, handed)
    knobs = np.concatenate([_knobs(rules, r, requests, record=record) for r in range(replicas)])
    now = before_the_first([replica.knobs.profile for replica in rules.replicas], bin_s)
    prefix = _prefix(requests, rules)
    places = np.concatenate([place_records(requests.prefix)] * (2 if rules.prefill else 1))
    drafts = draft_records(speculating_profile(rules), np.arange(count))
    states = tuple(
        state_of(
            knobs=knobs[r : r + 1],
            now=now[r : r + 1],
            requests=legs,
            by_rank=by_rank[1 if r < len(rules.prefill) else 0],
            victim_rank=victim_rank,
            longest_output=int(legs["output"].max(initial=1)),
            prefix=prefix,
            places=places,
            distinct_blocks=requests.prefix.distinct,
            drafts=drafts,
        )
        for r in range(replicas)
    )
    models, kinds = _models(rules)
    tables = (rules.network.table.arrays(), (rules.prefix_pool or rules.network).table.arrays())
    of_replica = np.zeros(replicas, dtype=REPLICA)
    of_replica["model"] = kinds
    of_replica["asleep"] = of_replica["resting"] = 1
    run = _run(rules, requests, record=record)
    topology = topology_of(rules)
    between = Between(
        run=run,
        ways=_ways(requests, handed),
        legs=_leg_accounts(len(legs)),
        replicas=of_replica,
        next_s=np.full(replicas, np.inf),
        events=_events(rules, run, count),
        active=np.zeros(count, dtype=np.int64),
        links=_links(topology),
        paths=_paths(topology, rules),
        pool=_pool(rules),
        pool_entries=np.zeros(requests.prefix.distinct + count if rules.prefix_pool else 1, dtype=POOL_ENTRY),
        knobs=knobs,
        now=now,
        requests=legs,
        prefix=prefix,
        places=places,
        states=STATE.rows_of(states),
        models=MODEL.rows_of(models),
        tables=TABLE.rows_of(tables),
    )
    return Cluster(BETWEEN.rows_of([between]), between, states, models, tables)


def _pool(rules: Rules) -> Records:
    pool = np.zeros(1, dtype=POOL)
    pool["oldest"] = pool["newest"] = -1
    blocks = rules.prefix_pool.blocks if rules.prefix_pool else None
    pool["most"] = NO_LIMIT if blocks is None else blocks
    return pool


def _most_cached(rules: Rules) -> int:
    """Blocks of the largest pool with a prefix cache."""
    profiles = [replica.knobs.profile for replica in rules.replicas]
    return max((profile.num_blocks for profile in profiles if profile.caching), default=0)


def _prefix(requests: Requests, rules: Rules) -> Records:
    """PREFIX[L]: the names of a prompt's blocks are the same on both sides. What is assumed to be cached is so where
    the prompt is computed."""
    if _most_cached(rules) == 0:
        return np.zeros(1, dtype=PREFIX)
    count, blocks = len(requests), requests.prefix
    prefix = np.zeros(2 * count if rules.prefill else count, dtype=PREFIX)
    decode, prefill = prefix[:count], prefix[count:]
    decode["shared_at"] = blocks.offsets[:-1]
    decode["shared"] = np.diff(blocks.offsets)
    decode["assumed"] = np.where(requests.handed_over, 0, requests.assumed_blocks)
    if len(prefill):
        prefill["shared_at"] = decode["shared_at"] + len(blocks.ids)
        prefill["shared"] = decode["shared"]
        prefill["assumed"] = requests.assumed_blocks
    return prefix


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
    ways["ttft_limit_s"] = requests.ttft_limit_s
    return ways


def _leg_accounts(count: int) -> Records:
    accounts = np.zeros(count, dtype=LEG)
    for name in ("entry", "replica", "entered_s"):
        accounts[name] = -1
    return accounts


def _knobs(rules: Rules, r: int, requests: Requests, *, record: bool) -> Records:
    replica, hand_off = rules.replicas[r], rules.hand_off
    profile = rules.profile_of(replica)
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
        "tell_finished": rules.closed_loop or rules.tells_prefills or rules.decode_router != ROUND_ROBIN,
        "arrivals_count": local or hand_off.mode == PUSH_CHUNKS or rules.warm_up_requests > 0,
        "queue_limited": rules.queue_requests < NO_LIMIT or rules.queue_tokens < NO_LIMIT,
        "queue_requests": rules.queue_requests,
        "queue_tokens": rules.queue_tokens,
        "warm_up_requests": rules.warm_up_requests,
        "prefill_router": ROUTERS[rules.prefill_router],
        "decode_router": ROUTERS[rules.decode_router],
        "overlap_weight": rules.overlap_weight,
        "keeps_accounts": rules.keeps_accounts,
        "tells_prefills": rules.tells_prefills,
        "pooled": rules.prefix_pool is not None,
        "pool_bytes_per_token": rules.prefix_pool.bytes_per_token if rules.prefix_pool else 0.0,
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
    events = np.zeros(16 + len(first) + (12 + 3 * len(rules.losses)) * count, dtype=EVENT)
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
    paths = np.full((len(rules.prefill) * len(rules.decode) + 1, MOST_LINKS), -1, dtype=np.int32)
    for p, row in enumerate(topology.paths):
        for d, path in enumerate(row):
            paths[p * len(rules.decode) + d, : len(path)] = path
    paths[-1, : len(topology.from_prefix_pool)] = topology.from_prefix_pool
    return paths


def _models(rules: Rules) -> tuple[tuple[StepTimeArrays, ...], list[int]]:
    """All step-time models, and which one each replica has."""
    distinct: list[StepTimeArrays] = []
    kinds = []
    for replica in rules.replicas:
        same = [kind for kind, model in enumerate(distinct) if model is replica.step_time]
        kinds.append(same[0] if same else len(distinct))
        if not same:
            distinct.append(replica.step_time)
    return as_floats(distinct), kinds
