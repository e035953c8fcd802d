"""The plain-Python cluster's accounts as arrays."""

from __future__ import annotations

import numpy as np

from planner.simulation.arrays import Floats, Ints
from planner.simulation.cluster.outcome import LinkUse, PrefixPoolUse, ReplicaUse
from planner.simulation.cluster.reference_links import Link
from planner.simulation.cluster.reference_prefix_pool import PrefixStore
from planner.simulation.cluster.reference_replica import Leg, ReferenceReplica
from planner.simulation.cluster.reference_run import Run
from planner.simulation.cluster.results import Legs, Raw
from planner.simulation.outcome import StepRecord
from planner.simulation.saturation import NO_LOAD


def raw_of(run: Run, *, record_steps: bool) -> Raw:
    ways = run.ways
    nobody = Leg(0, 0.0, 1, 1, 0, 0)
    return Raw(
        arrival_s=_floats([way.arrival_s for way in ways]),
        refusal=_ints([way.refusal for way in ways]),
        via=np.array([way.prefill is not None and not way.abandoned for way in ways], dtype=np.bool_),
        prefill=_legs([nobody if way.prefill is None else way.prefill for way in ways]),
        decode=_legs([way.decode for way in ways]),
        transfer_start_s=_floats([way.transfer_start_s for way in ways]),
        kv_ready_s=_floats([way.kv_ready_s for way in ways]),
        moved_bytes=_floats([way.moved_bytes for way in ways]),
        lost_kv=_ints([way.lost_kv for way in ways]),
        present_tokens=_ints([way.present_tokens for way in ways]),
        fetch_s=_floats([way.fetch_s for way in ways]),
        pool=None if run.store is None else _pool_use(run.store),
        uses=[_use(replica, record_steps=record_steps) for replica in run.replicas],
        held=[replica.held for replica in run.replicas],
        links=tuple(_link(link) for link in run.links.links),
    )


def _legs(legs: list[Leg]) -> Legs:
    return Legs(
        entry=_ints([leg.entry for leg in legs]),
        replica=_ints([leg.replica for leg in legs]),
        entered_s=_floats([leg.entered_s for leg in legs]),
        seen_waiting=_ints([leg.seen_waiting for leg in legs]),
        rest_s=_floats([leg.rest_s for leg in legs]),
        first_scheduled_s=_floats([leg.first_scheduled_s for leg in legs]),
        first_token_s=_floats([leg.first_token_s for leg in legs]),
        last_token_s=_floats([leg.last_token_s for leg in legs]),
        chunks_s=_floats([leg.chunks_s for leg in legs]),
        max_gap_s=_floats([leg.max_gap_s for leg in legs]),
        preemptions=_ints([leg.preemptions for leg in legs]),
        hit_tokens=_ints([leg.hit_tokens for leg in legs]),
        rehit_tokens=_ints([leg.rehit_tokens for leg in legs]),
        pool_hit_tokens=_ints([leg.pool_hit_tokens for leg in legs]),
    )


def _pool_use(store: PrefixStore) -> PrefixPoolUse:
    return PrefixPoolUse(store.size, store.stored, store.evicted)


def _use(replica: ReferenceReplica, *, record_steps: bool) -> ReplicaUse:
    rows = [row for step in replica.steps for row in step.batch.rows]
    return ReplicaUse(
        step_counts=_ints(replica.step_counts),
        step_busy_s=_floats(replica.step_busy_s),
        gap_counts=_ints(replica.gaps),
        empty_schedules=sum(not step.batch.rows for step in replica.steps),
        computed_tokens=sum(row.tokens for row in rows),
        decode_rows=sum(row.decode for row in rows),
        rows=len(rows),
        peak_running=replica.peak_running,
        least_free_blocks=replica.least_free,
        busy_s=replica.busy_s,
        uncovered_s=replica.uncovered_s,
        uncovered_steps=replica.uncovered_steps,
        last_end_s=replica.end_s,
        requests=replica.sent,
        load=NO_LOAD,
        kv_blocks=replica.engine.profile.num_blocks,
        kv_block_s=0.0,
        verifications=sum(row.emits and row.drafts > 0 and not row.padded for row in rows),
        draft_tokens=sum(row.drafts for row in rows if row.emits and not row.padded),
        accepted_tokens=sum(row.drafts - row.rejected for row in rows if row.emits),
        record=_record(replica) if record_steps else None,
    )


def _record(replica: ReferenceReplica) -> StepRecord:
    steps = replica.steps
    rows = [row for step in steps for row in step.batch.rows]
    return StepRecord(
        offsets=_offsets([len(step.batch.rows) for step in steps]),
        request=_ints([row.request.index for row in rows]),
        tokens=_ints([row.tokens for row in rows]),
        cached=_ints([row.cached for row in rows]),
        decode=_ints([row.decode for row in rows]),
        preempted_offsets=_offsets([len(step.batch.preempted) for step in steps]),
        preempted=_ints([request.index for step in steps for request in step.batch.preempted]),
        free_blocks=_ints([step.free_blocks for step in steps]),
        running=_ints([step.running for step in steps]),
        waiting=_ints([step.waiting for step in steps]),
        scheduled_s=_floats([step.scheduled_s for step in steps]),
        start_s=_floats([step.start_s for step in steps]),
        end_s=_floats([step.end_s for step in steps]),
    )


def _link(link: Link) -> LinkUse:
    return LinkUse(
        link.name,
        link.capacity_bytes_per_s,
        link.bytes,
        link.busy_s,
        link.transfers,
        link.peak_bytes_per_s,
    )


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _floats(values: list[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _offsets(lengths: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
