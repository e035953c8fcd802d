"""From a cluster's arrays to its raw account."""

from __future__ import annotations

import numpy as np

from planner.simulation.cluster.links import topology_of
from planner.simulation.cluster.outcome import LinkUse, ReplicaUse
from planner.simulation.cluster.results import NOT_JUDGED, Legs, Raw
from planner.simulation.cluster.rules import Rules
from planner.simulation.kernel.cluster_state import Cluster
from planner.simulation.kernel.results import Recorder
from planner.simulation.kernel.state import Records, State


def drain(cluster: Cluster, recorders: list[Recorder]) -> None:
    """Take every replica's recorded steps."""
    for r, recorder in enumerate(recorders):
        recorder.drain(_recorded(cluster, r))


def _recorded(cluster: Cluster, r: int) -> State:
    """A replica's State, of which only what a Recorder takes is used."""
    parts = {**cluster._asdict(), **cluster.between._asdict()}
    shared = ("requests", "victim_rank", "prefix", "nodes", "shared")
    views = {
        name: parts[name] if name in shared else parts[name][r] for name in State._fields if name != "by_rank"
    }
    views["now"] = cluster.between.now[r : r + 1]
    return State(**views, by_rank=cluster.by_rank[0])


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
        uses=[_use(cluster, r, recorders[r] if recorders else None) for r in range(len(cluster.between.now))],
        links=tuple(
            _link(name, link)
            for name, link in zip(topology_of(rules).names, cluster.between.links, strict=True)
        ),
    )


def _legs(cluster: Cluster, side: slice) -> Legs:
    """One side's legs; those of a pool that does not exist never came."""
    accounts, requests = cluster.between.legs[side], cluster.between.requests[side]
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
    )


def _use(cluster: Cluster, r: int, recorder: Recorder | None) -> ReplicaUse:
    now = cluster.between.now[r]
    requests = np.arange(len(cluster.between.requests)) % max(1, len(cluster.between.ways))
    return ReplicaUse(
        step_counts=cluster.step_counts[r].copy(),
        step_busy_s=cluster.step_busy_s[r].copy(),
        gap_counts=cluster.gap_counts[r].copy(),
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
        load=NOT_JUDGED,
        record=None if recorder is None else recorder.record(requests),
    )


def _link(name: str, link: Records) -> LinkUse:
    return LinkUse(
        name=name,
        capacity_bytes_per_s=float(link["capacity_bytes_per_s"]),
        bytes=float(link["bytes"]),
        busy_s=float(link["busy_s"]),
        transfers=int(link["transfers"]),
    )
