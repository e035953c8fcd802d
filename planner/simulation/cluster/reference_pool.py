"""A pool of replicas and its router, in plain Python.

Round robin sends requests to the replicas in turn. Least outstanding tokens sends each to the replica with the fewest
tokens of requests that were sent there and, as far as the router has heard, are not over: prompt tokens for the
prefill pool, prompt and output tokens elsewhere; of equals to the first. A lost replica is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.cluster.deployment import ROUND_ROBIN
from planner.simulation.cluster.reference_replica import ReferenceReplica


@dataclass(slots=True)
class Pool:
    replicas: list[ReferenceReplica]
    router: str
    turn: int = 0

    def choose(self) -> ReferenceReplica | None:
        """The replica for the next request; None when none is left."""
        alive = [replica for replica in self.replicas if not replica.lost]
        if not alive:
            return None
        if self.router != ROUND_ROBIN:
            return min(alive, key=lambda replica: replica.outstanding_tokens)
        while self.replicas[self.turn % len(self.replicas)].lost:
            self.turn += 1
        self.turn += 1
        return self.replicas[(self.turn - 1) % len(self.replicas)]
