"""Assembler B in plain Python: if a prefill batch can be formed it runs, and decodes wait; else all decodes run.

With whole prompts (vLLM V0) the heads of the queue enter a batch while seats, blocks and the token budget last,
and a decode that finds no free block preempts the last admitted. With chunks and an estimate (SGLang) one prompt
at a time may be cut: it comes first in the next batch. With an estimate but without chunks, whole prompts enter a
batch while they stay below the budget, and a larger one is a batch of its own. A prompt is admitted when it fits
beside what the running requests are estimated to need, a share (`ratio`) of their outputs still to come; once one
is turned away, the queue is shut until a request leaves. When decodes run out of pages the estimate was too low:
those with the fewest outputs go to the end of the queue and the ratio jumps; otherwise it falls a little with
every decode step.

The estimate is the ratio times the whole number of tokens to come (SGLang adds up the products one by one). Where
SGLang would fail for want of pages, an unfinished prompt takes what there is, or goes back to the queue.
Source: SGLang 0.5.23 (managers/schedule_policy.py, schedule_batch.py) and Sarathi-Serve 96f99117, recordings of whose
schedulers it is compared with. Tokens, blocks (pages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.simulation.profile import ESTIMATES, MOST_ESTIMATED, NO_LIMIT, STEPS_AHEAD
from planner.simulation.reference_requests import (
    Batch,
    Engine,
    Request,
    admit,
    blocks_for,
    give,
    missing_blocks,
    preempt,
    serve,
)


def assemble_prefill_first(engine: Engine) -> Batch:
    """Make one step's batch: take and free blocks, admit, preempt."""
    batch = Batch()
    decodes = [request for request in engine.running if request.decodes]
    if _in_gap(engine, len(decodes)):
        _decode(engine, batch, decodes)
        return batch
    if engine.profile.admission == ESTIMATES:
        _estimated_prompts(engine, batch, decodes)
    else:
        _whole_prompts(engine, batch)
    if not batch.rows:
        _decode(engine, batch, decodes)
        return batch
    engine.gap_left = engine.profile.gap
    if engine.profile.mixed and _new_blocks(engine, decodes) <= engine.free:
        for request in decodes:
            give(engine, batch, request, 1)
    return batch


def _in_gap(engine: Engine, decodes: int) -> bool:
    engine.in_gap = engine.gap_left > 0 and decodes >= engine.profile.gap_least_decodes
    engine.gap_left = engine.gap_left - 1 if engine.in_gap else 0
    return engine.in_gap


# Whole prompts --------------------------------------------------------------------------------------------------


def _whole_prompts(engine: Engine, batch: Batch) -> None:
    profile = engine.profile
    while engine.waiting and len(engine.running) < profile.seats:
        request = engine.waiting[0]
        if request.remote:
            break
        watermark = profile.watermark_blocks if engine.running else 0
        if blocks_for(engine, request.known) + watermark > engine.free:
            break
        if request.left > profile.budget - batch.tokens:
            break
        admit(engine, request)
        give(engine, batch, request, request.left)


# Chunks and an estimate -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Room:
    """What a prefill batch may still take. Tokens."""

    budget: int
    available: int  # free before the batch
    estimate: float  # what the running and the admitted will need
    taken: int  # by this batch, a page more for each request

    def take(self, pages_tokens: int, page: int, to_come: int) -> None:
        self.budget -= pages_tokens
        self.estimate += pages_tokens + page + to_come
        self.taken += pages_tokens + page

    @property
    def is_used_up(self) -> bool:
        return self.available - self.estimate <= 0 or self.available - self.taken <= 0


def _estimated_prompts(engine: Engine, batch: Batch, decodes: Sequence[Request]) -> None:
    profile, page = engine.profile, engine.profile.block_size
    chunked = next((request for request in engine.running if request.mid_prefill), None)
    if chunked is not None or not engine.running:
        engine.shut = False
    joining = len(decodes) if profile.mixed else 0
    to_come = sum(_to_come(request) for request in decodes)
    room = _Room(profile.budget - joining, engine.free * page, joining + to_come * engine.ratio, joining)
    if chunked is not None and not _go_on(engine, batch, chunked, room):
        return
    while engine.waiting and not engine.shut and room.budget > 0 and not engine.waiting[0].remote:
        if len(engine.running) >= profile.seats:
            engine.shut = True
            break
        request = engine.waiting[0]
        if request.left + _to_come(request) + page >= room.available - room.estimate:
            engine.shut = bool(engine.running)
            break
        take = request.left
        if not profile.chunked:
            if batch.rows and _whole_pages(engine, take) >= room.budget:
                break
        elif _whole_pages(engine, take) > room.budget:
            take = room.budget // page * page
            if take <= 0:
                break
        admit(engine, request)
        cut = take < request.left
        room.take(_whole_pages(engine, take), page, 0 if cut else min(request.limit, MOST_ESTIMATED))
        give(engine, batch, request, take)
        if room.is_used_up:
            engine.shut = True
        if cut:
            break


def _go_on(engine: Engine, batch: Batch, request: Request, room: _Room) -> bool:
    """The prompt that was cut comes first. False when there is no room for it."""
    page = engine.profile.block_size
    most = min(room.budget, int(room.available - room.estimate))
    in_pool = (request.blocks + engine.free) * page - request.computed  # SGLang would fail for want of pages
    take = min(request.left, most if most > 0 else room.budget, in_pool)
    if take <= 0:
        return False
    finishes = take == request.left
    room.take(_whole_pages(engine, take), page, min(request.limit, MOST_ESTIMATED) if finishes else 0)
    give(engine, batch, request, take)
    return True


def _to_come(request: Request) -> int:
    return min(request.limit - request.emitted, MOST_ESTIMATED)


def _whole_pages(engine: Engine, tokens: int) -> int:
    return blocks_for(engine, tokens) * engine.profile.block_size


# Decodes --------------------------------------------------------------------------------------------------------


def _new_blocks(engine: Engine, decodes: Sequence[Request]) -> int:
    return sum(missing_blocks(engine, request, 1) for request in decodes)


def _decode(engine: Engine, batch: Batch, decodes: list[Request]) -> None:
    if not engine.profile.fewest_outputs:
        serve(engine, batch, decodes, NO_LIMIT, NO_LIMIT, decodes=True)
        return
    if not decodes:
        return
    if _new_blocks(engine, decodes) > engine.free:
        decodes = _send_back(engine, batch, decodes)
    else:
        engine.ratio = max(engine.ratio - engine.profile.ratio_decay, engine.profile.least_ratio)
    for request in decodes:
        give(engine, batch, request, 1)


def _send_back(engine: Engine, batch: Batch, decodes: list[Request]) -> list[Request]:
    """At least one, never the last (unless it is short of what requests taken over hold); returns who stays."""
    kept = sorted(decodes, key=lambda request: (request.emitted, -request.prompt), reverse=True)
    while len(kept) > 1:
        preempt(engine, batch, kept.pop())
        if _new_blocks(engine, kept) <= engine.free:
            break
    cut = next((request for request in engine.running if request.mid_prefill), None)
    if cut is not None and _new_blocks(engine, kept) > engine.free:  # SGLang would fail for want of pages
        preempt(engine, batch, cut)
    side = engine.decode_side
    if side is not None and side.holds_blocks and _new_blocks(engine, kept) > engine.free:
        preempt(engine, batch, kept.pop())  # those taken over have what it needs
    engine.shut = False
    emitted = sum(request.emitted for request in kept)
    limits = sum(request.limit for request in kept)
    engine.ratio = min(1.0, (emitted + STEPS_AHEAD * len(kept)) / (limits + 1))
    return kept if _new_blocks(engine, kept) <= engine.free else []
