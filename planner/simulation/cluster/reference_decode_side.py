"""How a decode replica takes over prefilled requests, in plain Python.

A hand-off waits in the replica's queue like any other request. At its head it takes blocks for what it will hold in
its first row (all known tokens), and no seat: it is *staged* until its KV cache is there, then *ready*. Ready
requests take seats, in order, before anybody who waits. Then vLLM computes the last prompt token anew, which emits
the first token; where the first token came from the prefill side, this is an ordinary decode.

vLLM does all this in its waiting pass, so only in schedules that preempt nobody, and while budget and seats last. The
other engines keep hand-offs apart from their queue, and look after them before they make a schedule. Here they share
the queue's order: nobody overtakes a hand-off, and no hand-off overtakes.
Source: vLLM 0.33.0's waiting pass; SGLang's and TensorRT-LLM's admission as in spec/schedulers.md. Tokens, blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.simulation.cluster.deployment import HandOff
from planner.simulation.profile import RESERVES
from planner.simulation.reference_requests import Batch, Engine, Request, blocks_for, give, whole_future


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

    def seat_ready(self, engine: Engine, batch: Batch) -> None:
        """Seats and rows for ready requests while seats and budget last; their blocks are there."""
        profile = engine.profile
        while self.ready and batch.tokens < profile.budget and len(engine.running) < profile.seats:
            give(engine, batch, self._seat(engine), 1)

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
        if not self._may_have(engine, request):
            return False
        engine.waiting.pop(0)
        request.remote = False
        request.blocks = blocks_for(engine, request.known)
        engine.free -= request.blocks
        self.committed[request.index] = whole_future(engine, request)
        if engine.profile.admission == RESERVES:
            engine.set_aside += whole_future(engine, request)
        self.staged.append(request)
        self.newly_staged.append(request)
        return True

    def _may_have(self, engine: Engine, request: Request) -> bool:
        profile = engine.profile
        staging = len(self.staged) + len(self.ready)
        if self.hand_off.staging_requests and staging >= self.hand_off.staging_requests:
            return False
        needed = blocks_for(engine, request.known)
        others = staging + len(engine.running)
        if engine.running:
            needed += profile.watermark_blocks
        if others:
            needed += (others + 1) * blocks_for(engine, self.hand_off.reserved_tokens)
        if needed > engine.free or not others:
            return needed <= engine.free
        future = whole_future(engine, request)
        if profile.admission == RESERVES:
            futures = sum(whole_future(engine, running) for running in engine.running)
            return engine.set_aside + futures + future <= profile.num_blocks
        return (
            not self.hand_off.reserve_outputs or sum(self.committed.values()) + future <= profile.num_blocks
        )
