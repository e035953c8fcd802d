"""How a decode replica takes over prefilled requests, in plain Python.

A hand-off waits in the replica's queue like any other request. At its head it takes blocks for what it will hold in
its first row (all known tokens), and no seat: it is *staged* until its KV cache is there, then *ready*. Ready
requests take seats, in order, before anybody who waits. Then vLLM computes the last prompt token anew, which emits
the first token; where the first token came from the prefill side, this is an ordinary decode.

With a prefix cache (vLLM) it holds the leading blocks that the cache has of the prompt, and only the others are
sent: vLLM's NIXL connector reads the blocks behind a partial hit, and of a full one only tells the prefill side.
SGLang switches its radix cache off on decode servers. Only engines with `Profile.caching` do this here.

vLLM does all this in its waiting pass, so only in schedules that preempt nobody, and while budget and seats last. The
other engines keep hand-offs apart from their queue, and look after them before they make a schedule. Here they share
the queue's order: nobody overtakes a hand-off, and no hand-off overtakes.

A speculating vLLM stages a hand-off only if the first rows of all that are staged or ready would find room for their
drafts as well; it pads a first row with drafts that are rejected (`reference_mixed`).
Source: vLLM 0.33.0's waiting pass; SGLang preallocates before the prefill and reserves 512 tokens for each request,
TensorRT-LLM reserves prompt and all outputs. Tokens, blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.simulation.cluster.deployment import HandOff
from planner.simulation.profile import RESERVES
from planner.simulation.reference_requests import (
    Batch,
    Engine,
    Request,
    blocks_for,
    cached_of,
    give,
    missing_blocks,
    take_cached,
    whole_future,
)


@dataclass(slots=True)
class ReferenceDecodeSide:
    """`staged`: has blocks, its KV cache is on the way; `newly_staged`: those of the schedule being made;
    `committed`: blocks for the prompt and all outputs of each hand-off that is here and not finished, by request."""

    hand_off: HandOff
    staged: list[Request] = field(default_factory=list)
    ready: list[Request] = field(default_factory=list)
    newly_staged: list[Request] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)

    @property
    def holds_blocks(self) -> bool:
        """For requests that do not run yet."""
        return bool(self.staged or self.ready)

    def seat_ready(self, engine: Engine, batch: Batch, padding: int) -> bool:
        """Seats and rows for ready requests while seats and budget last; their blocks are there, but for those of
        drafts. False: the next one waits for room for them."""
        profile = engine.profile
        while self.ready and batch.tokens < profile.budget and len(engine.running) < profile.seats:
            take = 1 + padding
            if (
                take > profile.budget - batch.tokens
                or missing_blocks(engine, self.ready[0], take) > engine.free
            ):
                return False
            give(engine, batch, self._seat(engine), take)
        return True

    def take_over(self, engine: Engine) -> None:
        """Before a schedule: ready requests take seats, as decodes whose next block is theirs no more than others',
        and then hand-offs at the head of the queue are staged."""
        while self.ready and len(engine.running) < engine.profile.seats:
            request = self._seat(engine)
            surplus = request.blocks - blocks_for(engine, request.computed)
            request.blocks -= surplus
            engine.free += surplus
        while engine.waiting and engine.waiting[0].remote and self.take_blocks(engine):
            pass

    def _seat(self, engine: Engine) -> Request:
        request = self.ready.pop(0)
        engine.running.append(request)
        if engine.profile.admission == RESERVES:
            engine.set_aside -= whole_future(engine, request)
        return request

    def take_blocks(self, engine: Engine) -> bool:
        """Stage the head of the queue if it may have its blocks now."""
        request = engine.waiting[0]
        cached_tokens, hits = cached_of(engine, request)
        if not self._may_have(engine, request, sum(block.holders > 0 for block in hits)):
            return False
        engine.waiting.pop(0)
        request.remote = False
        take_cached(engine, request, cached_tokens, hits)
        missing = blocks_for(engine, request.known) - request.blocks
        engine.free -= missing
        request.blocks += missing
        if engine.cache:
            engine.cache.extend(request.index, missing)
        self.committed[request.index] = whole_future(engine, request)
        if engine.profile.admission == RESERVES:
            engine.set_aside += whole_future(engine, request)
        self.staged.append(request)
        self.newly_staged.append(request)
        return True

    def _may_have(self, engine: Engine, request: Request, held_by_others: int) -> bool:
        profile = engine.profile
        staging = len(self.staged) + len(self.ready)
        if self.hand_off.staging_requests and staging >= self.hand_off.staging_requests:
            return False
        needed = blocks_for(engine, request.known) - held_by_others
        others = staging + len(engine.running)
        if engine.running:
            needed += profile.watermark_blocks
        if others:
            needed += (others + 1) * blocks_for(engine, self.hand_off.reserved_tokens)
            needed += (staging + 1) * profile.first_row_blocks
        if needed > engine.free or not others:
            return needed <= engine.free
        future = whole_future(engine, request)
        if profile.admission == RESERVES:
            futures = sum(whole_future(engine, running) for running in engine.running)
            return engine.set_aside + futures + future <= profile.num_blocks
        return (
            not self.hand_off.reserve_outputs or sum(self.committed.values()) + future <= profile.num_blocks
        )
