"""What of a plan is held against reality: whose requests, on which deployment, and what is predicted of them.

A replay serves one replica's requests on one engine (two pools: the whole deployment, an engine for every replica). A
running server is sent what its replicas would get. Both take the busiest window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibration.architecture import Architecture
from calibration.transfer import TransferTable
from planner import services
from planner.knob_columns import kinds_of
from planner.models import Plan
from planner.plan_recipes import pools_of
from planner.recipes import Pool
from planner.search.combinations import Candidate, Pools
from planner.search.conditions import Conditions, Link
from planner.search.requests import Requests, requests_of
from planner.search.runs import hand_off_of, run_replica
from planner.simulation import kernel
from planner.simulation.cluster.deployment import Disaggregated, Network
from planner.simulation.cluster.deployment import pool as replicas_of
from planner.simulation.kernel.cluster import simulate as simulate_cluster
from planner.simulation.merge import merge
from planner.simulation.outcome import Outcome
from planner.verification.pool_steps import PoolSteps
from planner.verification.rate import at_rate, held_per_s
from planner.verification.window import busiest


@dataclass(frozen=True, slots=True)
class Subject:
    """`requests`: the window, from position `first` of the `of` requests that `replicas` replicas get. `split`: how
    the two pools hand over (None: one pool). `conditions`: of the plan. `ranks`: of a replica of the decode pool."""

    requests: Requests
    pools: tuple[Pool, ...]
    architecture: Architecture
    conditions: Conditions
    first: int
    of: int
    replicas: int
    split: Mapping[str, Any] | None = None
    ranks: int = 1

    @property
    def token_bytes(self) -> float:
        """KV bytes that a prompt token brings from one pool to the other, to all ranks."""
        return float(self.architecture.kv_bytes_per_token(tensor_parallel=self.ranks))

    @property
    def knobs(self) -> Any:
        """Of every replica; of two pools the decode side's."""
        return self.pools[-1].knobs

    @property
    def longest_tokens(self) -> int:
        return int((self.requests.prompt_tokens + self.requests.output_tokens).max())

    @property
    def candidate(self) -> Candidate:
        if self.split is None:
            return Candidate(self.knobs, self.replicas)
        prefill, decode = self.pools
        return Candidate(
            decode.knobs, prefill.replicas + decode.replicas,
            Pools(
                prefill.knobs, decode.knobs, self.split["hand_off"], self.split["transfer_chunk_tokens"],
                self.split["local_prefill_tokens"],
            ),
            prefill.replicas,
        )  # fmt: skip

    def deployment(self, steps: PoolSteps, table: TransferTable | None = None) -> Disaggregated:
        """Two pools with hand-offs by `table` (None: the plan's own link)."""
        table = table or self.link.table
        candidate = self.candidate
        assert candidate.pools is not None  # noqa: S101 - of two pools only
        return Disaggregated(
            prefill=replicas_of(candidate.prefill_replicas, candidate.pools.prefill, steps.prefill),
            decode=replicas_of(candidate.decode_replicas, candidate.pools.decode, steps.decode),
            hand_off=hand_off_of(candidate, self.token_bytes, self.conditions.message_s),
            network=Network.cards(table),
            local_prefill_tokens=candidate.pools.local_prefill_tokens,
        )

    @property
    def link(self) -> Link:
        assert self.conditions.link is not None  # noqa: S101 - a plan with two pools has one
        return self.conditions.link


def conditions_of(result: Mapping[str, Any]) -> Conditions:
    """Under which the plan must hold; one from before there were any holds for the traffic as it is."""
    return Conditions.from_dict(result["inputs"].get("conditions") or {})


def subject_of(plan: Plan, count: int, replicas: int = 1) -> Subject:
    """The window of `count` requests that `replicas` of the plan's replicas get (two pools: all requests)."""
    result: dict[str, Any] = plan.result or {}
    choice, inputs = result["verdict"]["choice"], result["inputs"]
    pools, conditions = pools_of(choice, inputs), conditions_of(result)
    everything, _ = requests_of(
        services.traffic_of(plan.traffic), conditions, inputs["max_model_len"], pools[0].knobs.profile.block_size
    )  # fmt: skip
    split = choice.get("split")
    if split:
        share, replicas = everything, sum(pool.replicas for pool in pools)
    else:
        replicas = min(replicas, pools[0].replicas)
        dealt = np.flatnonzero(np.arange(everything.count) % pools[0].replicas < replicas)
        share = everything.reordered(dealt, everything.arrival_s[dealt])
    window, first = busiest(share, min(count, max(2, share.count)))
    return Subject(
        window, pools, Architecture.from_dict(inputs["architecture"]), conditions, first, share.count, replicas, split,
        _ranks_of(choice, inputs),
    )  # fmt: skip


def _ranks_of(choice: Mapping[str, Any], inputs: Mapping[str, Any]) -> int:
    """Of a replica of the (decode) pool; plans of before they were kept had one."""
    kind = kinds_of(choice)[-1]
    hardware = inputs.get("hardware")
    pool = (hardware[kind] if hardware else inputs).get("kv_capacity")
    return int((pool or {}).get("ranks", 1))


def predict(subject: Subject, steps: PoolSteps, table: TransferTable | None = None) -> Outcome:
    """The window on the deployment, simulated. `table`: of hand-offs, other than the plan's link."""
    requests, hit_share = subject.requests, subject.conditions.hit_share
    if subject.split is None:
        parts = [requests.share(i, subject.replicas) for i in range(subject.replicas)]
        runs = [
            run_replica(kernel.simulate, part, subject.knobs, steps.decode, 0.0, hit_share)
            for part in parts
            if part.count
        ]
        return runs[0] if len(runs) == 1 else merge(runs)
    return simulate_cluster(
        requests.arrival_s, requests.prompt_tokens, requests.output_tokens, requests.priority,
        subject.deployment(steps, table), max_tokens=requests.max_tokens,
    ).requests  # fmt: skip


def paced(
    subject: Subject,
    load: float | None,
    steps: PoolSteps,
    table: TransferTable | None = None,
) -> tuple[Subject, dict[str, float]]:
    """The window at `load` of what the deployment holds (None: as it came), and how fast that is. ValueError for
    requests that have no rhythm."""
    requests = subject.requests
    held = held_per_s(requests, lambda many: predict(replace(subject, requests=many), steps, table))
    if load is not None:
        subject = replace(subject, requests=at_rate(requests, load * held))
    span_s = float(subject.requests.arrival_s[-1] - subject.requests.arrival_s[0])
    rate = (requests.count - 1) / span_s if span_s > 0.0 else 0.0
    return subject, {"held_per_s": held, "rate_per_s": rate}
