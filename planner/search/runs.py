"""One candidate's requests through the simulator: pooled times, and what each pool and the link did.

Replicas stand behind a round-robin router, so replica r of R gets requests r, r + R, r + 2R, ... and can be simulated
by itself; two pools hang together and are simulated as one cluster. Samples are pooled before any percentile is
taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import StepTimeArrays
from planner.search.class_gaps import gaps_by_group
from planner.search.combinations import Candidate
from planner.search.conditions import Link
from planner.search.engines import budget_of, seqs_of
from planner.search.requests import Requests
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    PULL,
    PUSH_CHUNKS,
    SGLANG_RESERVED_TOKENS,
    VLLM_LEASE_S,
    Aggregated,
    Disaggregated,
    HandOff,
    Network,
    pool,
)
from planner.simulation.cluster.glance import Watch
from planner.simulation.cluster.outcome import ClusterOutcome, ReplicaUse, idle_share
from planner.simulation.knobs import Knobs, TrtLlmKnobs
from planner.simulation.outcome import DECODE, Outcome

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Simulate(Protocol):
    """`planner.simulation.kernel.simulate`, or the reference."""

    def __call__(
        self,
        arrival_s: Floats,
        prompt_tokens: Ints,
        output_tokens: Ints,
        priority: Ints | None,
        knobs: Knobs,
        step_time: StepTimeArrays,
        *,
        host_gap_s: float,
        max_tokens: Ints | None = None,
        prefix: Any = None,
        assumed_hit_share: float = 0.0,
        record_steps: bool = False,
    ) -> Outcome: ...


class SimulateCluster(Protocol):
    """`planner.simulation.kernel.cluster.simulate`, or the reference."""

    def __call__(
        self,
        arrival_s: Floats,
        prompt_tokens: Ints,
        output_tokens: Ints,
        priority: Ints | None,
        deployment: Any,
        *,
        max_tokens: Ints | None = None,
        prefix: Any = None,
        assumed_hit_share: float = 0.0,
        record_steps: bool = False,
        watch: Watch | None = None,
    ) -> ClusterOutcome: ...


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What the replicas of one role did. Shares of 1; `busy_s` by kind of step: decode, prefill, mixed.

    idle_share: of their time to the end of the run, in which no step ran. full_share: of the KV pool in use at its
    fullest moment. seats: how many sequences may run; peak_running of them did.
    """

    role: str
    replicas: int
    idle_share: float
    full_share: float
    seats: int = field(compare=False)
    peak_running: int
    busy_s: tuple[float, float, float]
    uncovered_share: float
    chunk_fill: float


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """A finished run. transfer_s, first_decode_s float64[N] of the served requests, None without a hand-off.

    `link_share`: of what the busiest card could have carried in the time of the run. group int64[N]: as
    `Requests.group`, in the order of `pooled`; gaps int64[groups, bins]: by group, where an objective asks for it.
    """

    pooled: Outcome
    extra_s: Floats | None
    pools: tuple[PoolUse, ...] = ()
    transfer_s: Floats | None = None
    first_decode_s: Floats | None = None
    link_share: float | None = None
    moved_bytes: float = 0.0
    group: Ints | None = None
    gaps: Ints | None = None

    def gaps_of(self, group: int) -> Ints:
        """The histogram of the gaps of one group's requests."""
        if self.gaps is None:
            raise ValueError("gaps were not told apart by group")
        counts: Ints = self.gaps[group]
        return counts


def run_replica(
    simulate: Simulate,
    part: Requests,
    knobs: Knobs,
    step_time: StepTimeArrays,
    host_gap_s: float,
    hit_share: float = 0.0,
    *,
    record_steps: bool = False,
) -> Outcome:
    return simulate(
        part.arrival_s,
        part.prompt_tokens,
        part.output_tokens,
        part.priority,
        knobs,
        step_time,
        host_gap_s=host_gap_s,
        **_options(part, hit_share, record_steps=record_steps),
    )


def _options(
    part: Requests, hit_share: float, *, record_steps: bool, watch: Watch | None = None
) -> dict[str, Any]:
    """Only what says something: a simulator that is asked for nothing special is called as ever."""
    found: dict[str, Any] = {}
    if part.max_tokens is not None:
        found["max_tokens"] = part.max_tokens
    if part.prefix is not None:
        found["prefix"] = part.prefix
    if hit_share:
        found["assumed_hit_share"] = hit_share
    if record_steps:
        found["record_steps"] = True
    if watch is not None:
        found["watch"] = watch
    return found


def aggregated_use(knobs: Knobs, replicas: int, pooled: Outcome) -> PoolUse:
    decode_s, prefill_s, mixed_s = pooled.step_busy_s.tolist()
    return PoolUse(
        role="replica",
        replicas=replicas,
        idle_share=1.0 - pooled.utilisation,
        full_share=1.0 - pooled.least_free_blocks / knobs.profile.num_blocks,
        seats=seqs_of(knobs),
        peak_running=pooled.peak_running,
        busy_s=(decode_s, prefill_s, mixed_s),
        uncovered_share=pooled.uncovered_share,
        chunk_fill=_chunk_fill(
            knobs, pooled.computed_tokens - pooled.decode_rows, pooled.steps - int(pooled.step_counts[DECODE])
        ),
    )


def _chunk_fill(knobs: Knobs, prompt_tokens: int, steps: int) -> float:
    return prompt_tokens / steps / budget_of(knobs) if steps else 0.0


def hand_off_of(candidate: Candidate, bytes_per_token: float, message_s: float) -> HandOff:
    """The engine's way to hand over, in the mode of the candidate."""
    pools = candidate.pools
    if pools is None:
        raise ValueError("replicas alike hand nothing over")
    reserves = pools.hand_off == AFTER_PREFILL or isinstance(pools.decode, TrtLlmKnobs)
    pushes = pools.hand_off == PUSH_CHUNKS and not reserves
    return HandOff(
        pools.hand_off,
        bytes_per_token,
        message_s,
        chunk_tokens=pools.transfer_chunk_tokens,
        reserved_tokens=SGLANG_RESERVED_TOKENS if pushes else 0,
        reserve_outputs=reserves,
        lease_s=VLLM_LEASE_S if pools.hand_off == PULL else math.inf,
    )


def of_two_pools(
    simulate: SimulateCluster,
    requests: Requests,
    candidate: Candidate,
    step_times: tuple[StepTimeArrays, StepTimeArrays],
    host_gap_s: float,
    link: Link,
    bytes_per_token: float,
    message_s: float,
    hit_share: float,
    *,
    record_steps: bool,
    watch: Watch | None = None,
) -> ClusterOutcome:
    """Two pools; the decode pool may have to compute prompts too, so both have the whole of their knobs.

    step_times: of the prefill and the decode pool.
    """
    pools = candidate.pools
    if pools is None:
        raise ValueError("replicas alike are simulated one by one")
    return simulate(
        requests.arrival_s,
        requests.prompt_tokens,
        requests.output_tokens,
        requests.priority,
        Disaggregated(
            prefill=pool(candidate.prefill_replicas, pools.prefill, step_times[0], host_gap_s),
            decode=pool(candidate.decode_replicas, pools.decode, step_times[1], host_gap_s),
            hand_off=hand_off_of(candidate, bytes_per_token, message_s),
            network=Network.cards(link.table),
            prefill_router=pools.router,
            decode_router=pools.router,
            local_prefill_tokens=pools.local_prefill_tokens,
        ),
        **_options(requests, hit_share, record_steps=record_steps, watch=watch),
    )


def run_cluster(
    simulate: SimulateCluster,
    requests: Requests,
    candidate: Candidate,
    step_times: tuple[StepTimeArrays, StepTimeArrays],
    host_gap_s: float,
    link: Link,
    bytes_per_token: float,
    message_s: float,
    *,
    hit_share: float = 0.0,
    tell_gaps: bool = False,
    watch: Watch | None = None,
) -> Ran:
    """As `of_two_pools`, pooled."""
    pools = candidate.pools
    if pools is None:
        raise ValueError("replicas alike are simulated one by one")
    outcome = of_two_pools(
        simulate, requests, candidate, step_times, host_gap_s, link, bytes_per_token, message_s, hit_share,
        record_steps=tell_gaps, watch=watch,
    )  # fmt: skip
    served = outcome.requests.served
    parts = outcome.ttft_parts_s()
    shares = [link.occupancy(outcome.makespan_s) for link in outcome.links]
    gap_s = outcome.transfer_s() if pools.hand_off == AFTER_PREFILL else parts["transfer"]
    return Ran(
        pooled=outcome.requests,
        extra_s=requests.extra_s,
        pools=(
            _pool_use("prefill", pools.prefill, outcome.prefill, outcome.makespan_s),
            _pool_use("decode", pools.decode, outcome.decode, outcome.makespan_s),
        ),
        transfer_s=gap_s[served],
        first_decode_s=outcome.first_decode_s()[served],
        link_share=max(shares, default=None),
        moved_bytes=float(np.nansum(outcome.moved_bytes)),
        group=requests.group,
        gaps=_gaps(outcome, requests) if tell_gaps else None,
    )


def of_router(
    simulate: SimulateCluster,
    requests: Requests,
    knobs: Knobs,
    replicas: int,
    router: str,
    step_time: StepTimeArrays,
    host_gap_s: float,
    hit_share: float,
    *,
    record_steps: bool,
) -> ClusterOutcome:
    """Replicas alike whose router looks at them, so that they are simulated together."""
    return simulate(
        requests.arrival_s,
        requests.prompt_tokens,
        requests.output_tokens,
        requests.priority,
        Aggregated(pool(replicas, knobs, step_time, host_gap_s), router),
        **_options(requests, hit_share, record_steps=record_steps),
    )


def run_behind_router(
    simulate: SimulateCluster,
    requests: Requests,
    knobs: Knobs,
    replicas: int,
    router: str,
    step_time: StepTimeArrays,
    host_gap_s: float,
    hit_share: float,
    *,
    tell_gaps: bool = False,
) -> Ran:
    """As `of_router`, pooled."""
    outcome = of_router(
        simulate, requests, knobs, replicas, router, step_time, host_gap_s, hit_share, record_steps=tell_gaps
    )
    return Ran(
        outcome.requests,
        requests.extra_s,
        (aggregated_use(knobs, replicas, outcome.requests),),
        group=requests.group,
        gaps=_gaps(outcome, requests) if tell_gaps else None,
    )


def _gaps(outcome: ClusterOutcome, requests: Requests) -> Ints | None:
    """By group, of what the pool emits that clients read."""
    if requests.group is None:
        return None
    records = [use.record for use in outcome.decode if use.record is not None]
    return gaps_by_group(outcome.requests, records, requests.group, 1 + len(requests.classes))


def _pool_use(role: str, knobs: Knobs, uses: Sequence[ReplicaUse], makespan_s: float) -> PoolUse:
    decode_s, prefill_s, mixed_s = np.sum([use.step_busy_s for use in uses], axis=0).tolist()
    busy_s = sum(use.busy_s for use in uses)
    return PoolUse(
        role=role,
        replicas=len(uses),
        idle_share=idle_share(uses, makespan_s),
        full_share=1.0 - min(use.least_free_blocks for use in uses) / knobs.profile.num_blocks,
        seats=seqs_of(knobs),
        peak_running=max(use.peak_running for use in uses),
        busy_s=(decode_s, prefill_s, mixed_s),
        uncovered_share=sum(use.uncovered_s for use in uses) / busy_s if busy_s > 0 else 0.0,
        chunk_fill=_chunk_fill(
            knobs,
            sum(use.computed_tokens - use.decode_rows for use in uses),
            sum(int(use.step_counts.sum() - use.step_counts[DECODE]) for use in uses),
        ),
    )
