"""A pool of replicas and its router, in plain Python.

Round robin sends requests to the replicas in turn. Least outstanding tokens sends each to the replica with the fewest
tokens of requests that were sent there and, as far as the router has heard, are not over: prompt tokens for the
prefill pool, prompt and output tokens elsewhere.

Prefix aware is the rule of NVIDIA Dynamo's KV router (its documentation, "Router Design": cost calculation) with
temperature 0: the replica with the least

    overlap_weight x prefill blocks + decode blocks
    prefill blocks = (tokens that requests sent there have still to compute + this one's that are not cached there)
                     / tokens of a block
    decode blocks  = blocks of the requests that are there + this one's, each without what was cached there

The router knows what each replica has cached at this moment, as engines tell with every block they store or forget
(Dynamo's KV events), and keeps accounts of what it sent: a request's tokens count from the moment it is sent until
its first token is out (in a decode pool: until its KV cache is there), its blocks until it is over; in the prefill
pool both until the router hears that the prefill is over. In the decode pool the tokens that are not cached are those
that have to be transferred. The same rule serves every pool; Dynamo itself sets the weight of its decode pool to 0.

Of equals the first is taken. A lost replica is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.cluster.deployment import LEAST_TOKENS, ROUND_ROBIN
from planner.simulation.cluster.reference_replica import Leg, ReferenceReplica
from planner.simulation.reference_requests import Row, blocks_for, cached_of


@dataclass(slots=True)
class Pool:
    replicas: list[ReferenceReplica]
    router: str
    overlap_weight: float = 1.0
    turn: int = 0

    def choose(self, leg: Leg) -> ReferenceReplica | None:
        """The replica for the next request; None when none is left."""
        alive = [replica for replica in self.replicas if not replica.lost]
        if not alive:
            return None
        if self.router == LEAST_TOKENS:
            return min(alive, key=lambda replica: replica.outstanding_tokens)
        if self.router != ROUND_ROBIN:
            return min(alive, key=lambda replica: self._cost(replica, leg))
        while self.replicas[self.turn % len(self.replicas)].lost:
            self.turn += 1
        self.turn += 1
        return self.replicas[(self.turn - 1) % len(self.replicas)]

    def _cost(self, replica: ReferenceReplica, leg: Leg) -> float:
        engine, overlap_tokens = replica.engine, overlap(replica, leg)
        block = engine.profile.block_size
        prefill_blocks = (replica.prefill_tokens + leg.known - overlap_tokens) / block
        decode_blocks = replica.active_blocks + blocks_for(engine, leg.known) - overlap_tokens // block
        return self.overlap_weight * prefill_blocks + decode_blocks


def overlap(replica: ReferenceReplica, leg: Leg) -> int:
    """Tokens of a request that the replica has cached now."""
    return cached_of(replica.engine, leg)[0]


def book(replica: ReferenceReplica, leg: Leg, fetched_tokens: int, *, remote: bool) -> None:
    """A request is sent to the replica: on the accounts, also of what is ahead of the next one (see
    reference_admission)."""
    engine, cached = replica.engine, overlap(replica, leg)
    leg.booked_tokens = leg.known - cached
    leg.booked_blocks = blocks_for(engine, leg.known) - cached // engine.profile.block_size
    if not remote:
        own = leg.known - cached - fetched_tokens
        leg.ahead_tokens = own
        leg.ahead_pairs = own * (cached + fetched_tokens) + own * (own + 1) // 2
    replica.prefill_tokens += leg.booked_tokens
    replica.active_blocks += leg.booked_blocks
    replica.ahead_tokens += leg.ahead_tokens
    replica.ahead_pairs += leg.ahead_pairs


def is_scheduled(replica: ReferenceReplica, leg: Leg, row: Row) -> None:
    """A step computes these tokens: they are ahead of nobody any more, nor is anything after the prompt's last."""
    pairs = row.tokens * row.cached + row.tokens * (row.tokens + 1) // 2
    tokens = leg.ahead_tokens if row.emits else min(row.tokens, leg.ahead_tokens)
    pairs = leg.ahead_pairs if row.emits else min(pairs, leg.ahead_pairs)
    leg.ahead_tokens -= tokens
    leg.ahead_pairs -= pairs
    replica.ahead_tokens -= tokens
    replica.ahead_pairs -= pairs


def prefill_is_done(replica: ReferenceReplica, leg: Leg) -> None:
    replica.prefill_tokens -= leg.booked_tokens
    leg.booked_tokens = 0


def close(replica: ReferenceReplica, leg: Leg) -> None:
    """It is over there."""
    prefill_is_done(replica, leg)
    replica.active_blocks -= leg.booked_blocks
    leg.booked_blocks = 0


def strike(leg: Leg) -> None:
    """Its replica is lost, and the accounts with it."""
    leg.booked_tokens = leg.booked_blocks = leg.ahead_tokens = leg.ahead_pairs = 0
