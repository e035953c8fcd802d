"""Early rejection in plain Python: a request is turned away if its TTFT, predicted at its arrival, is above its limit.

The prediction knows what was sent to the replica and is in no step yet (tokens, and pairs of tokens that attention has
to look at), what the replica has cached and the prefix pool has, and what engines report of themselves (requests
running, KV blocks in use, until when the steps last that are scheduled). From that

    TTFT = rest of the steps that are scheduled + steps x seconds of such a step + fetch + transfer
    steps = (tokens ahead + its own) / what a step leaves for prompts beside one token for each running request

with equal steps, priced by the replica's step-time model: their tokens, one decode row for each running request, KV in
use as the decodes' contexts. A prefill replica has no decodes, nor has a prefill batch of an engine that keeps the two
apart. Fetch and transfer (pull: the prompt but one token; push: the last chunk; after the prefill: none) at the speed
of one alone. What is to come (arrivals, decodes that grow, preemptions) is not foreseen, nor is the decode side's room.
Source: Mooncake (Qin et al., FAST 2025), early rejection by predicted load. Seconds, tokens.
"""

from __future__ import annotations

from planner.simulation.cluster.deployment import AFTER_PREFILL, PULL
from planner.simulation.cluster.reference_fetch import to_fetch
from planner.simulation.cluster.reference_pool import overlap
from planner.simulation.cluster.reference_replica import Leg, ReferenceReplica
from planner.simulation.cluster.reference_run import Run, Way
from planner.simulation.kernel.step_time import step_seconds, transfer_parts
from planner.simulation.profile import PREFILL_FIRST


def predicted_ttft_s(run: Run, way: Way, replica: ReferenceReplica, leg: Leg, now: float) -> float:
    profile, engine = replica.of.knobs.profile, replica.engine
    apart = way.prefill is not None or (profile.assembler == PREFILL_FIRST and not profile.mixed)
    rows = 0 if apart else len(engine.running)
    contexts = (profile.num_blocks - engine.free) * profile.block_size if rows else 0
    longest = contexts / rows if rows else 0.0
    first, end = to_fetch(run, replica, leg)
    fetched = (end - first) * profile.block_size
    cached = overlap(replica, leg) + fetched
    own = leg.known - cached
    tokens = replica.ahead_tokens + own
    pairs = replica.ahead_pairs + own * cached + own * (own + 1) // 2
    chunk = max(1, profile.budget - rows)
    steps = -(-tokens // chunk)
    seconds, _ = step_seconds(
        replica.of.step_time,
        tokens / steps + rows,
        float(rows),
        float(rows + 1),
        float(contexts),
        longest,
        pairs / steps,
        max(float(leg.known), longest),
    )
    ttft_s = max(replica.end_s - now, 0.0) + steps * (seconds + replica.of.gap_s)
    if run.store is not None and fetched:
        latency_s, alone = transfer_parts(run.store.table, fetched * run.store.pool.bytes_per_token)
        ttft_s += latency_s + fetched * run.store.pool.bytes_per_token / alone
    rules = run.rules.hand_off
    if way.prefill is not None and rules.mode != AFTER_PREFILL:
        moved = way.prompt - 1 if rules.mode == PULL else min(own, chunk)
        latency_s, alone = transfer_parts(run.table, moved * rules.bytes_per_token)
        ttft_s += rules.message_s + latency_s + moved * rules.bytes_per_token / alone
    return ttft_s
