"""From a run's raw accounts, the reference's or the kernel's, to a ClusterOutcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.simulation import saturation
from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.cluster.order import SERVED
from planner.simulation.cluster.outcome import ClusterOutcome, LinkUse, PrefixPoolUse, ReplicaUse
from planner.simulation.cluster.rules import Rules
from planner.simulation.cluster.transfers_load import judge_transfers
from planner.simulation.cluster.workload import Requests
from planner.simulation.held import Held
from planner.simulation.outcome import Outcome
from planner.simulation.saturation import NO_LOAD, Load, merge_loads
from planner.simulation.time_bins import pooled_bins


@dataclass(slots=True)
class Legs:
    """One side's part in each request, arrays of N; times are -1 until they happen. `entry` numbers the arrivals at
    replicas, over all of them; -1: never came. `seen_waiting`: the replica's queue then, itself included. `rest_s`:
    how long the replica had rested when it came."""

    entry: Ints
    replica: Ints
    entered_s: Floats
    seen_waiting: Ints
    rest_s: Floats
    first_scheduled_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    chunks_s: Floats
    max_gap_s: Floats
    preemptions: Ints
    hit_tokens: Ints
    rehit_tokens: Ints
    pool_hit_tokens: Ints


@dataclass(slots=True)
class Raw:
    """A finished run. `uses` come without loads, prefill replicas first; refusal, lost_kv, present_tokens int64[N],
    via bool[N]; other arrays float64[N], -1 where something did not happen."""

    arrival_s: Floats
    refusal: Ints
    via: Bools  # its prompt was, or was to be, computed by the prefill pool
    prefill: Legs
    decode: Legs
    transfer_start_s: Floats
    kv_ready_s: Floats
    moved_bytes: Floats
    lost_kv: Ints
    present_tokens: Ints
    fetch_s: Floats
    pool: PrefixPoolUse | None
    uses: list[ReplicaUse]
    held: list[Held]  # of each replica, to be closed
    links: tuple[LinkUse, ...]


def finish(raw: Raw, requests: Requests, rules: Rules) -> ClusterOutcome:
    prefill_count = len(rules.prefill)
    served = raw.refusal == SERVED
    first, decode = raw.prefill, raw.decode
    via = served & raw.via

    def either(name: str) -> Floats:
        values: Floats = np.where(via, getattr(first, name), getattr(decode, name))
        return values

    def told(values: Floats, where: Bools = served) -> Floats:
        shown: Floats = np.where(where, values, np.nan)
        return shown

    scheduled, prefilled = either("first_scheduled_s"), either("first_token_s")
    waits = np.maximum(prefilled - scheduled - either("chunks_s"), 0.0)
    loads = [
        NO_LOAD
        if rules.closed_loop
        else _load(
            first if replica < prefill_count else decode,
            replica,
            served,
            looks=replica < prefill_count or not prefill_count,
        )
        for replica in range(len(raw.uses))
    ]
    makespan_s = max(*(use.last_end_s for use in raw.uses), float(decode.last_token_s.max(initial=0.0)))
    uses = tuple(
        _closed(use, held, load, makespan_s)
        for use, held, load in zip(raw.uses, raw.held, loads, strict=True)
    )
    ready = np.where(raw.kv_ready_s >= 0.0, raw.kv_ready_s, decode.first_scheduled_s)
    handed = served & via & (ready >= 0.0)
    begun = np.where(raw.transfer_start_s >= 0.0, raw.transfer_start_s, ready)
    transfers = (
        NO_LOAD if rules.closed_loop else judge_transfers(prefilled[handed], begun[handed], ready[handed])
    )
    bin_s, bins = pooled_bins([(use.bin_s, use.bins) for use in uses])
    preempted = first.preemptions + decode.preemptions
    return ClusterOutcome(
        requests=Outcome(
            arrival_s=raw.arrival_s,
            prompt_tokens=requests.prompt_tokens,
            output_tokens=requests.output_tokens,
            first_scheduled_s=told(scheduled),
            prefill_end_s=told(prefilled),
            prefill_wait_s=told(waits),
            first_token_s=told(decode.first_token_s),
            done_s=told(decode.last_token_s),
            max_gap_s=told(decode.max_gap_s),
            preemptions=np.where(served, preempted, 0),
            hit_tokens=np.where(served, np.where(via, first.hit_tokens, decode.hit_tokens), 0),
            rehit_tokens=np.where(served, first.rehit_tokens + decode.rehit_tokens, 0),
            rejected=np.flatnonzero(~served),
            peak_running=max(use.peak_running for use in uses),
            least_free_blocks=min(use.least_free_blocks for use in uses),
            makespan_s=makespan_s,
            load=merge_loads([*loads, transfers]),
            replicas=len(uses),
            bin_s=bin_s,
            bins=bins,
            **_summed(uses),
        ),
        refusal=raw.refusal,
        prefill_replica=first.replica,
        decode_replica=np.where(decode.replica >= 0, decode.replica - prefill_count, -1),
        transfer_start_s=told(raw.transfer_start_s, raw.transfer_start_s >= 0.0),
        kv_ready_s=told(ready, handed),
        moved_bytes=raw.moved_bytes,
        lost_kv=raw.lost_kv,
        present_tokens=np.where(handed & (raw.kv_ready_s >= 0.0), raw.present_tokens, 0),
        pool_hit_tokens=np.where(served, np.where(via, first.pool_hit_tokens, decode.pool_hit_tokens), 0),
        fetch_s=told(raw.fetch_s),
        request_class=requests.request_class,
        prefix_pool=raw.pool,
        warm_up_requests=rules.warm_up_requests,
        prefill=uses[:prefill_count],
        decode=uses[prefill_count:],
        links=raw.links,
        pulled=rules.pulled,
        transfers_load=transfers,
    )


def _closed(use: ReplicaUse, held: Held, load: Load, makespan_s: float) -> ReplicaUse:
    held.close(makespan_s)
    return replace(use, load=load, kv_block_s=held.kv_block_s, bin_s=held.bin_s, bins=held.series)


def _summed(uses: Sequence[ReplicaUse]) -> dict[str, Any]:
    names = (
        "gap_counts",
        "step_counts",
        "step_busy_s",
        "empty_schedules",
        "computed_tokens",
        "decode_rows",
        "rows",
        "busy_s",
        "uncovered_s",
        "uncovered_steps",
        "kv_blocks",
        "kv_block_s",
        "verifications",
        "draft_tokens",
        "accepted_tokens",
    )
    return {name: sum(getattr(use, name) for use in uses) for name in names}


def _load(legs: Legs, replica: int, served: Bools, *, looks: bool) -> Load:
    """Judge one replica by the requests that it got, as `saturation` judges one that is alone. `looks`: at its queue,
    which behind a hand-off is not only its own."""
    mine = np.flatnonzero((legs.replica == replica) & served & (legs.entry >= 0))
    mine = mine[np.argsort(legs.entry[mine])]
    count = len(mine)
    waiting = np.zeros(4, dtype=np.int64)
    if count:
        np.add.at(waiting, saturation.quarter_of(np.arange(count), count), legs.seen_waiting[mine])
    late = legs.rest_s[mine][count // 2 + 1 :]
    rest_s = float(np.cumsum(late)[-1]) if len(late) else 0.0  # in order: the kernel for one adds so
    began_s, first_s = legs.first_scheduled_s[mine], legs.first_token_s[mine]
    queue = (began_s, first_s) if looks else (None, None)
    return saturation.judge(legs.entered_s[mine], legs.last_token_s[mine], waiting, rest_s, *queue)
