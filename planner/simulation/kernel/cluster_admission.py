"""Early rejection by predicted TTFT: `cluster.reference_admission`, compiled."""

from __future__ import annotations

from planner.simulation.kernel.cluster_pool import blocks_to_fetch
from planner.simulation.kernel.cluster_records import AFTER_PREFILL_MODE, PULL_MODE
from planner.simulation.kernel.cluster_router import known_tokens, overlap
from planner.simulation.kernel.cluster_state import Between, pool_table, replica_model, transfer_table
from planner.simulation.kernel.compiled import compiled
from planner.simulation.kernel.step_time import step_seconds, transfer_parts


@compiled
def predicted_ttft_s(between: Between, i: int, r: int, leg: int, now_s: float) -> float:
    run, knobs, now, way = between.run[0], between.knobs[r], between.now[r], between.ways[i]
    rows = 0 if way.handed_over != 0 or knobs.prefills_apart != 0 else now.running
    contexts = (knobs.num_blocks - now.free) * knobs.block_size if rows > 0 else 0
    longest = contexts / rows if rows > 0 else 0.0
    fetched = blocks_to_fetch(between, r, leg) * knobs.block_size
    known = known_tokens(between, leg)
    cached = overlap(between, r, leg) + fetched
    own = known - cached
    tokens = between.replicas[r].ahead_tokens + own
    pairs = between.replicas[r].ahead_pairs + own * cached + own * (own + 1) // 2
    chunk = max(1, knobs.budget - rows)
    steps = (tokens + chunk - 1) // chunk
    seconds, _ = step_seconds(
        replica_model(between, r),
        tokens / steps + rows,
        float(rows),
        float(rows + 1),
        float(contexts),
        longest,
        pairs / steps,
        max(float(known), longest),
    )
    ttft_s = max(now.end_s - now_s, 0.0) + steps * (seconds + knobs.host_gap_s)
    if fetched > 0:
        latency_s, alone = transfer_parts(pool_table(between), fetched * run.pool_bytes_per_token)
        ttft_s += latency_s + fetched * run.pool_bytes_per_token / alone
    if way.handed_over != 0 and run.mode != AFTER_PREFILL_MODE:
        moved = way.prompt - 1 if run.mode == PULL_MODE else min(own, chunk)
        latency_s, alone = transfer_parts(transfer_table(between), moved * run.bytes_per_token)
        ttft_s += run.message_s + latency_s + moved * run.bytes_per_token / alone
    return float(ttft_s)
