"""How a decode replica takes over prefilled requests, in plain Python.

A hand-off waits in the replica's queue like any other request. At its head, where another would be admitted, it takes
blocks for what it will hold in its first row (all known tokens), and no seat and no budget: it is *staged* until
its KV cache is there, then *ready*. A ready request takes a seat in the next schedule that preempts nobody and has
seat and budget left, before anybody who waits, with one row: vLLM computes the last prompt token anew, which
emits the first token; where the first token came from the prefill side, this is an ordinary decode.
Source: vLLM 0.33.0's waiting pass; SGLang's and TensorRT-LLM's admission as in spec/schedulers.md. Tokens, blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.simulation.cluster.deployment import HandOff
from planner.simulation.reference_requests import Batch, Engine, Request, blocks_for, give


@dataclass(slots=True)
class ReferenceDecodeSide:
    """`staged`: has blocks, its KV cache is on the way; `newly_staged`: those of the schedule being made;
    `reserved`: blocks for the prompt and all outputs of each hand-off that is here and not finished, by request."""

    hand_off: HandOff
    staged: list[Request] = field(default_factory=list)
    ready: list[Request] = field(default_factory=list)
    newly_staged: list[Request] = field(default_factory=list)
    reserved: dict[int, int] = field(default_factory=dict)

    def seat_ready(self, engine: Engine, batch: Batch) -> None:
        """Seat the ready requests in order while seats and budget last."""
        profile = engine.profile
        while self.ready and batch.tokens < profile.budget and len(engine.running) < profile.seats:
            request = self.ready.pop(0)
            engine.running.append(request)
            give(engine, batch, request, 1)  # its blocks are there

    def take_blocks(self, engine: Engine) -> bool:
        """Stage the head of the queue if it may have its blocks now."""
        request = engine.waiting[0]
        if not self._may_have(engine, request):
            return False
        engine.waiting.pop(0)
        request.remote = False
        request.blocks = blocks_for(engine, request.known)
        engine.free -= request.blocks
        self.reserved[request.index] = blocks_for(engine, request.prompt + request.output)
        self.staged.append(request)
        self.newly_staged.append(request)
        return True

    def _may_have(self, engine: Engine, request: Request) -> bool:
        staging = len(self.staged) + len(self.ready)
        if self.hand_off.staging_requests and staging >= self.hand_off.staging_requests:
            return False
        needed = blocks_for(engine, request.known)
        others = staging + len(engine.running)
        if engine.running:
            needed += engine.profile.watermark_blocks
        if others:
            needed += (others + 1) * blocks_for(engine, self.hand_off.reserved_tokens)
        if needed > engine.free:
            return False
        reserved = sum(self.reserved.values()) + blocks_for(engine, request.prompt + request.output)
        return not self.hand_off.reserve_outputs or reserved <= engine.profile.num_blocks
