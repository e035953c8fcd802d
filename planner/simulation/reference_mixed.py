"""Assembler A in plain Python: one token budget per step, shared by decodes and prompt chunks.

In order: the running requests are served as they stand in the list, in order of admission, then the head of the
queue is admitted while budget, seats and KV blocks last. Apart: first the decodes up to their quota, then the prompts
(begun ones, then the queue) with what the budget still has, then the decodes that are left. A quota of the whole
budget is decode first, of nothing prefill first, of a part fair share.

Blocks are taken for the tokens of the step only (or for the whole prompt at once), so the pool can run out: then
the last admitted loses its blocks, its progress and its seat, and returns to the queue to be recomputed. An engine
that reserves a request's whole future never gets there.
Source: the schedulers of vLLM 0.33.0 (v1/core/sched/scheduler.py), Sarathi-Serve 96f99117 and TensorRT-LLM (main,
2026). The first two are compared with recordings of the real objects; of the third nothing was executed, its rules
are read. Tokens and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.simulation.profile import IN_ORDER, NO_LIMIT, RESERVES, Profile
from planner.simulation.reference_requests import (
    Batch,
    Engine,
    Request,
    admit,
    blocks_for,
    cached_of,
    give,
    missing_blocks,
    serve,
    take_cached,
    whole_future,
)


def assemble_mixed(engine: Engine) -> Batch:
    """Make one step's batch: take and free blocks, admit, preempt."""
    return _in_order(engine) if engine.profile.assembler == IN_ORDER else _apart(engine)


# In order -------------------------------------------------------------------------------------------------------


def _in_order(engine: Engine) -> Batch:
    profile, batch = engine.profile, Batch()
    cap = _chunk_cap(engine)
    defer = (
        profile.interval > 1
        and not engine.capacity_bound
        and engine.executed + 1 - engine.last_prefill_step < profile.interval
        and any(not request.mid_prefill for request in engine.running)
    )
    able = [
        request for request in engine.running if not (request.exhausted or (defer and request.mid_prefill))
    ]
    serve(engine, batch, able, profile.budget, cap)
    padding = _padding(profile, batch, cap)
    admitted_prefill = False
    if not batch.preempted:
        admitted_prefill = _admit(engine, batch, cap, most_left=1 if defer else NO_LIMIT, padding=padding)
        if not defer:
            engine.capacity_bound = bool(engine.waiting)
    if batch.rows:
        engine.executed += 1
    if profile.interval > 1 and (admitted_prefill or any(row.was_mid_prefill for row in batch.rows)):
        engine.last_prefill_step = engine.executed
    return batch


def _chunk_cap(engine: Engine) -> int:
    profile, in_engine = engine.profile, len(engine.running) + len(engine.waiting)
    cap = profile.threshold if in_engine > 1 else 0
    if profile.adaptive and in_engine > 0:
        cap = max(cap, profile.budget // in_engine)
    return cap or NO_LIMIT


def _padding(profile: Profile, batch: Batch, cap: int) -> int:
    """Rejected drafts that a newcomer with one token gets, so that all rows of a step that only decodes are alike;
    vLLM would rather let him wait than do without. (It fails where a row could never be so long: here none is padded.)
    """
    fits = 1 + profile.drafts <= min(cap, profile.budget)
    return profile.drafts if fits and not any(row.was_mid_prefill for row in batch.rows) else 0


def _admit(
    engine: Engine, batch: Batch, cap: int, most_left: int, kept_free: int = 0, padding: int = 0
) -> bool:
    """Admit from the head of the queue, no overtaking, leaving blocks that others will need in this step.

    False unless somebody had more than one token to compute.
    """
    profile = engine.profile
    admitted_prefill, others_run = False, bool(batch.rows)
    side = engine.decode_side if profile.assembler == IN_ORDER else None
    if side is not None and not side.seat_ready(engine, batch, padding):
        return False
    while engine.waiting and batch.tokens < profile.budget and len(engine.running) < profile.seats:
        request = engine.waiting[0]
        if request.remote and side is not None and side.take_blocks(engine):
            continue
        if request.remote:
            break
        watermark = profile.watermark_blocks if engine.running else 0
        cached_tokens, hits = cached_of(engine, request)
        if request.left - cached_tokens > most_left:
            break
        held_by_others = sum(block.holders > 0 for block in hits)
        left = request.left - cached_tokens
        padded = left == 1 and padding > 0 and (others_run or cached_tokens > 0)
        if padded and 1 + padding > profile.budget - batch.tokens:
            break
        take = 1 + padding if padded else min(left, cap, profile.budget - batch.tokens)
        tokens = max(request.known, cached_tokens + take + profile.lookahead)
        if blocks_for(engine, tokens) - held_by_others + watermark + kept_free > engine.free:
            break
        if not profile.chunked and request.left > profile.budget - batch.tokens:
            break
        admit(engine, request)
        take_cached(engine, request, cached_tokens, hits)
        admitted_prefill = admitted_prefill or left > 1
        give(engine, batch, request, take)
    return admitted_prefill


# Apart ----------------------------------------------------------------------------------------------------------


def _apart(engine: Engine) -> Batch:
    profile, batch = engine.profile, Batch()
    decodes = [request for request in engine.running if request.decodes]
    begun = [request for request in engine.running if request.mid_prefill]
    limit = profile.budget if profile.decodes_limited else NO_LIMIT
    prompts_may = _prompts_may(engine, decodes, begun)
    serve(engine, batch, decodes, min(profile.decode_quota, limit), NO_LIMIT, decodes=True)
    if not prompts_may:
        return batch
    if profile.admission == RESERVES:
        _reserved_prompts(engine, batch, begun)
    else:
        serve(engine, batch, begun, profile.budget, NO_LIMIT)
        if not batch.preempted:
            waiting = [decode for decode in decodes if decode.index not in batch.served]
            kept_free = sum(missing_blocks(engine, decode, 1) for decode in waiting)
            _admit(engine, batch, NO_LIMIT, NO_LIMIT, kept_free)
    serve(engine, batch, decodes, limit, NO_LIMIT, decodes=True)
    return batch


def _prompts_may(engine: Engine, decodes: Sequence[Request], begun: Sequence[Request]) -> bool:
    """Shares of time: prompts are computed while they had no more than theirs since both sides have had work."""
    if engine.profile.time_share >= 1.0:
        return True
    engine.sharing = bool(decodes) and bool(begun or engine.waiting)
    if not engine.sharing:
        engine.shared_s = engine.prefill_s = 0.0
        return True
    return engine.prefill_s <= engine.profile.time_share * engine.shared_s


def _reserved_prompts(engine: Engine, batch: Batch, begun: Sequence[Request]) -> None:
    """Begun prompts, then the queue, while seats and the blocks for everybody's whole future last. Who gets no
    tokens lets the next one try, but keeps his reservation in this step."""
    profile = engine.profile
    futures = sum(whole_future(engine, request) for request in engine.running)
    unreserved = profile.num_blocks - engine.set_aside - futures
    prompts = list(begun)
    for request in engine.waiting:
        unreserved -= whole_future(engine, request)
        if (
            request.remote
            or unreserved < 0
            or len(engine.running) + len(prompts) - len(begun) >= profile.seats
        ):
            break
        prompts.append(request)
    left = [request.left for request in prompts]
    for request, take in zip(prompts, _split(engine, left, profile.budget - batch.tokens), strict=True):
        if take > 0:
            if request not in engine.running:
                admit(engine, request)
            give(engine, batch, request, take)


def _split(engine: Engine, left: list[int], budget: int) -> list[int]:
    """Tokens for each prompt. If all fit, all run whole."""
    profile = engine.profile
    if sum(left) <= budget:
        return left
    takes = [0] * len(left)
    if not profile.chunked:
        for place, want in enumerate(left):
            if want > budget:
                break
            takes[place] = want
            budget -= want
    elif profile.equal_progress:
        gave = True
        while gave:
            gave = False
            for place, want in enumerate(left):
                more = min(profile.unit, want - takes[place])
                if 0 < more <= budget:
                    takes[place] += more
                    budget -= more
                    gave = True
    else:
        for place, want in enumerate(left):
            takes[place] = want if want <= budget else budget // profile.unit * profile.unit
            budget -= takes[place]
    return takes
