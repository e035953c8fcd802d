"""From a cluster's arrays to its raw account."""

from __future__ import annotations

import numpy as np

from planner.simulation.cluster.links import topology_of
from planner.simulation.cluster.outcome import LinkUse, PrefixPoolUse, ReplicaUse
from planner.simulation.cluster.results import Legs, Raw
from planner.simulation.cluster.rules import Rules
from planner.simulation.kernel.cluster_state import Cluster
from planner.simulation.kernel.records import PREFIX, Records
from planner.simulation.kernel.results import Recorder, held_of
from planner.simulation.saturation import NO_LOAD


def drain(cluster: Cluster, recorders: list[Recorder]) -> None:
    """Take every replica's recorded steps."""
    for state, recorder in zip(cluster.states, recorders, strict=False):  # none where nothing is recorded
        recorder.drain(state)


def raw_of(cluster: Cluster, rules: Rules, recorders: list[Recorder]) -> Raw:
    ways, count = cluster.between.ways, len(cluster.between.ways)
    decode, prefill = _legs(cluster, slice(0, count)), _legs(cluster, slice(count, 2 * count))
    return Raw(
        arrival_s=ways["arrival_s"].copy(),
        refusal=ways["refusal"].astype(np.int64),
        via=(ways["handed_over"] != 0) & (ways["abandoned"] == 0),
        prefill=prefill,
        decode=decode,
        transfer_start_s=ways["transfer_start_s"].copy(),
        kv_ready_s=ways["kv_ready_s"].copy(),
        moved_bytes=ways["moved_bytes"].copy(),
        lost_kv=ways["lost_kv"].astype(np.int64),
        present_tokens=ways["present_tokens"].astype(np.int64),
        fetch_s=ways["fetch_s"].copy(),
        pool=None if rules.prefix_pool is None else _pool_use(cluster.between.pool[0]),
        uses=[_use(cluster, r, recorders[r] if recorders else None) for r in range(len(cluster.between.now))],
        held=[held_of(state.now[0], state.bins) for state in cluster.states],
        links=tuple(
            _link(name, link)
            for name, link in zip(topology_of(rules).names, cluster.between.links, strict=True)
        ),
    )


def _pool_use(pool: Records) -> PrefixPoolUse:
    return PrefixPoolUse(int(pool["size"]), int(pool["stored"]), int(pool["evicted"]))


def _legs(cluster: Cluster, side: slice) -> Legs:
    """One side's legs; those of a pool that does not exist never came."""
    accounts, requests = cluster.between.legs[side], cluster.between.requests[side]
    prefix = cluster.between.prefix
    cached = prefix[side] if len(prefix) == len(cluster.between.legs) else np.zeros(len(accounts), PREFIX)
    if len(accounts) == 0:
        count = len(cluster.between.ways)
        never, zeros = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
        at_no_time, for_no_time = np.full(count, -1.0), np.zeros(count)
        return Legs(
            entry=never,
            replica=never,
            entered_s=at_no_time,
            seen_waiting=zeros,
            rest_s=for_no_time,
            first_scheduled_s=at_no_time,
            first_token_s=at_no_time,
            last_token_s=at_no_time,
            chunks_s=for_no_time,
            max_gap_s=for_no_time,
            preemptions=zeros,
            hit_tokens=zeros,
            rehit_tokens=zeros,
            pool_hit_tokens=zeros,
        )
    return Legs(
        entry=accounts["entry"].copy(),
        replica=accounts["replica"].astype(np.int64),
        entered_s=accounts["entered_s"].copy(),
        seen_waiting=accounts["seen_waiting"].astype(np.int64),
        rest_s=accounts["rest_s"].copy(),
        first_scheduled_s=requests["first_scheduled_s"].copy(),
        first_token_s=requests["first_token_s"].copy(),
        last_token_s=requests["last_token_s"].copy(),
        chunks_s=requests["chunks_s"].copy(),
        max_gap_s=requests["max_gap_s"].copy(),
        preemptions=requests["preemptions"].astype(np.int64),
        hit_tokens=cached["hit_tokens"].copy(),
        rehit_tokens=cached["rehit_tokens"].copy(),
        pool_hit_tokens=cached["pool_hit_tokens"].copy(),
    )


def _use(cluster: Cluster, r: int, recorder: Recorder | None) -> ReplicaUse:
    now = cluster.between.now[r]
    requests = np.arange(len(cluster.between.requests)) % max(1, len(cluster.between.ways))
    return ReplicaUse(
        step_counts=cluster.states[r].step_counts.copy(),
        step_busy_s=cluster.states[r].step_busy_s.copy(),
        gap_counts=cluster.states[r].gap_counts.copy(),
        empty_schedules=int(now["empty_schedules"]),
        computed_tokens=int(now["computed_tokens"]),
        decode_rows=int(now["decode_rows"]),
        rows=int(now["all_rows"]),
        peak_running=int(now["peak_running"]),
        least_free_blocks=int(now["least_free"]),
        busy_s=float(now["busy_s"]),
        uncovered_s=float(now["uncovered_s"]),
        uncovered_steps=int(now["uncovered_steps"]),
        last_end_s=float(now["end_s"]),
        requests=int(cluster.between.replicas[r]["sent"]),
        load=NO_LOAD,
        kv_blocks=int(cluster.between.knobs[r]["num_blocks"]),
        kv_block_s=0.0,
        verifications=int(now["verifications"]),
        draft_tokens=int(now["draft_tokens"]),
        accepted_tokens=int(now["accepted_tokens"]),
        record=None if recorder is None else recorder.record(requests),
    )


def _link(name: str, link: Records) -> LinkUse:
    return LinkUse(
        name=name,
        capacity_bytes_per_s=float(link["capacity_bytes_per_s"]),
        bytes=float(link["bytes"]),
        busy_s=float(link["busy_s"]),
        transfers=int(link["transfers"]),
        peak_bytes_per_s=float(link["peak_bytes_per_s"]),
    )
