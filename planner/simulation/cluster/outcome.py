"""What a cluster run found: the requests' times, split by phase, and what every replica and link did.

TTFT = queue (arrival to the first step that computes for the request) + prefill (to the end of the step that
completes the prompt) + transfer (to when the KV cache is ready on the decode side; its wait for room there and the
messages included) + first decode (pull only: to the end of the one decode-side step). With a hand-off after the
prefill the first token is out before the transfer, which then is part of the first gap. A request that one
replica serves alone has neither. Seconds, tokens, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.cluster.order import SERVED
from planner.simulation.outcome import Outcome, StepRecord
from planner.simulation.saturation import Load
from planner.simulation.selection import without_first


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaUse:
    """One replica over the whole run; fields as in `Outcome`. `record`: its requests are positions in the input."""

    step_counts: Ints
    step_busy_s: Floats
    gap_counts: Ints
    empty_schedules: int
    computed_tokens: int
    decode_rows: int
    rows: int
    peak_running: int
    least_free_blocks: int
    busy_s: float
    uncovered_s: float
    uncovered_steps: int
    last_end_s: float
    requests: int  # how many it was sent (a request counts on each side)
    load: Load
    kv_blocks: int
    kv_block_s: float
    bin_s: float = 0.0
    bins: Floats | None = None
    verifications: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    record: StepRecord | None = None


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One shared link. `busy_s`: time with at least one transfer on it."""

    name: str
    capacity_bytes_per_s: float
    bytes: float
    busy_s: float
    transfers: int
    peak_bytes_per_s: float  # the most that its transfers moved at once

    def occupancy(self, makespan_s: float) -> float:
        """Share of what it could have carried in that time."""
        return self.bytes / (self.capacity_bytes_per_s * makespan_s) if makespan_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PrefixPoolUse:
    """The shared prefix pool. `blocks`: what it held at the end, `stored_blocks` - `evicted_blocks` of them."""

    blocks: int
    stored_blocks: int
    evicted_blocks: int


@dataclass(frozen=True, slots=True, eq=False)
class ClusterOutcome:
    """Arrays have N entries in the order of the input; NaN (-1 for replicas) where something did not happen.

    `requests` pools everything that an `Outcome` holds, over all replicas: refused requests are its `rejected`.
    `prefill_replica` is -1 for a request that the decode replica (or aggregated replica) served alone.
    """

    requests: Outcome
    refusal: Ints  # order.REFUSALS
    prefill_replica: Ints
    decode_replica: Ints  # the last one, if one was lost
    transfer_start_s: Floats  # of the last transfer, where its latency begins
    kv_ready_s: Floats  # where the decode side computed the prompt itself: the start of its first step for it
    moved_bytes: Floats
    lost_kv: Ints  # how often the decode side had to compute what it could not have handed over
    present_tokens: Ints  # of the prompt, were in the decode side's prefix cache and not transferred
    pool_hit_tokens: (
        Ints  # of the prompt, came from the prefix pool; those of a local cache are requests.hit_tokens
    )
    fetch_s: Floats  # from its arrival at the replica until that was there; a part of the queue
    request_class: Ints
    prefix_pool: PrefixPoolUse | None
    warm_up_requests: int
    prefill: tuple[ReplicaUse, ...]
    decode: tuple[ReplicaUse, ...]  # of an aggregated deployment: all replicas
    links: tuple[LinkUse, ...]
    pulled: bool  # the first token comes from the decode side
    transfers_load: Load  # of what moves KV caches, as saturation judges a server

    @property
    def makespan_s(self) -> float:
        return self.requests.makespan_s

    @property
    def handed_over(self) -> Bools:
        """bool[N]: served, and its KV cache came from the prefill pool."""
        mask: Bools = (self.refusal == SERVED) & (self.prefill_replica >= 0) & ~np.isnan(self.kv_ready_s)
        return mask

    def transfer_s(self) -> Floats:
        """float64[N]: prefill end to KV ready; 0 where nothing was handed over, NaN for refused requests."""
        return self._where_handed(self.kv_ready_s - self.requests.prefill_end_s)

    def first_decode_s(self) -> Floats:
        """float64[N]: KV ready to first token (pull only)."""
        if not self.pulled:
            return self._where_handed(np.zeros(len(self.refusal)))
        return self._where_handed(self.requests.first_token_s - self.kv_ready_s)

    def ttft_parts_s(self) -> dict[str, Floats]:
        """queue, prefill, transfer, first decode, float64[N] each: for every served request they sum to its TTFT."""
        requests = self.requests
        in_ttft = np.maximum(requests.first_token_s - requests.prefill_end_s, 0.0)
        return {
            "queue": requests.first_scheduled_s - requests.arrival_s,
            "prefill": requests.prefill_end_s - requests.first_scheduled_s,
            "transfer": in_ttft - self.first_decode_s(),
            "first decode": self.first_decode_s(),
        }

    def _where_handed(self, values: Floats) -> Floats:
        filled: Floats = np.where(self.handed_over, values, np.where(self.refusal == SERVED, 0.0, np.nan))
        return filled

    def measured(self) -> Outcome:
        """`requests` without those of the warm-up (their gaps were not counted in the first place)."""
        return without_first(self.requests, self.warm_up_requests)

    def idle_share(self, pool: str) -> float:
        """Share of the replicas' time, up to the end of the run, in which no step ran; "prefill" or "decode"."""
        replicas = self.prefill if pool == "prefill" else self.decode
        return idle_share(replicas, self.makespan_s)


def idle_share(replicas: Sequence[ReplicaUse], makespan_s: float) -> float:
    if not replicas or makespan_s <= 0.0:
        return 0.0
    return 1.0 - sum(replica.busy_s for replica in replicas) / (len(replicas) * makespan_s)
