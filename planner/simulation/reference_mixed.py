"""Assembler A as vLLM V1 runs it, in plain Python: one token budget, shared by decodes and prompt chunks.

A request has `computed` tokens catching up with `known = prompt + generated`; a decode is the case "one token
left". Each step first serves the running requests in order of admission, then admits from the head of the queue
while budget, seats and KV blocks last. Blocks are taken for the tokens of the step only, so the pool can run out:
then a victim loses its blocks, its progress, and its seat, and returns to the queue (recompute). With asynchronous
scheduling a step is assembled before the result of the one before is known: its token is "in flight", counted
as known. Source: vLLM 0.33.0 scheduler, as in spec/schedulers.md "Exact rules"; tokens and blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from planner.simulation.knobs import PRIORITY, VllmKnobs


@dataclass(slots=True, eq=False)
class Request:
    index: int
    arrival_s: float
    prompt: int
    output: int
    priority: int
    tie: int
    computed: int = 0
    generated: int = 0
    in_flight: int = 0
    blocks: int = 0
    mid_prefill: bool = False  # some known tokens were left uncomputed when it was last scheduled
    preemptions: int = 0
    remote: bool = False  # waiting for blocks only: its KV cache comes from a prefill replica

    @property
    def known(self) -> int:
        return self.prompt + self.generated + self.in_flight

    @property
    def exhausted(self) -> bool:
        """Its last token is in flight: nothing more to compute, but seat and blocks are still taken."""
        return self.generated + self.in_flight >= self.output

    @property
    def queue_key(self) -> tuple[int, float, int]:
        return self.priority, self.arrival_s, self.tie


@dataclass(slots=True, eq=False)
class Row:
    request: Request
    tokens: int
    cached: int
    decode: bool
    emits: bool = False
    chunk_of_mid_prefill: bool = False


@dataclass(slots=True)
class Batch:
    rows: list[Row] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


class DecodeSide(Protocol):
    """What a replica that takes over prefilled requests does in its waiting pass (cluster.reference_decode_side)."""

    def seat_ready(self, engine: Engine, batch: Batch, budget: int) -> int: ...

    def take_blocks(self, engine: Engine) -> bool: ...


@dataclass(slots=True)
class Engine:
    knobs: VllmKnobs
    free: int
    running: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    executed: int = 0
    last_prefill_step: int = 0
    capacity_bound: bool = False
    decode_side: DecodeSide | None = None


def enqueue(engine: Engine, request: Request, *, front: bool = False) -> None:
    if engine.knobs.policy == PRIORITY:
        engine.waiting.append(request)
        engine.waiting.sort(key=lambda waiting: waiting.queue_key)
    elif front:
        engine.waiting.insert(0, request)
    else:
        engine.waiting.append(request)


def schedule(engine: Engine) -> Batch:
    """Assemble one step: take blocks, move `computed` on, count emitted tokens as in flight."""
    knobs = engine.knobs
    in_engine = len(engine.running) + len(engine.waiting)
    cap = knobs.long_prefill_token_threshold if in_engine > 1 else 0
    if knobs.adaptive_threshold and in_engine > 0:
        cap = max(cap, knobs.max_num_batched_tokens // in_engine)
    defer = (
        knobs.prefill_schedule_interval > 1
        and not engine.capacity_bound
        and engine.executed + 1 - engine.last_prefill_step < knobs.prefill_schedule_interval
        and any(not request.mid_prefill for request in engine.running)
    )
    batch = Batch()
    budget = _running_pass(engine, batch, knobs.max_num_batched_tokens, cap, defer)
    admitted_prefill = False
    if not batch.preempted:
        admitted_prefill = _waiting_pass(engine, batch, budget, cap, defer)
        if not defer:
            engine.capacity_bound = bool(engine.waiting)
    if batch.rows:
        engine.executed += 1
    if knobs.prefill_schedule_interval > 1 and (
        admitted_prefill or any(row.chunk_of_mid_prefill for row in batch.rows)
    ):
        engine.last_prefill_step = engine.executed
    for row in batch.rows:
        _advance(row)
    return batch


def deliver(engine: Engine, batch: Batch) -> int:
    """Apply a step's result: tokens in flight become generated; finished requests leave. Returns how many did."""
    finished = 0
    for row in batch.rows:
        if not row.emits:
            continue
        request = row.request
        request.in_flight -= 1
        request.generated += 1
        if request.generated == request.output:
            finished += 1
            # preempted with its last token in flight, it finishes in the queue, without blocks
            (engine.running if request in engine.running else engine.waiting).remove(request)
            engine.free += request.blocks
            request.blocks = 0
    return finished


def _running_pass(engine: Engine, batch: Batch, budget: int, cap: int, defer: bool) -> int:
    position = 0
    while position < len(engine.running) and budget > 0:
        request = engine.running[position]
        want = request.known - request.computed
        if want == 0 or request.exhausted or (defer and request.mid_prefill):
            position += 1
            continue
        take = min(want, budget) if cap == 0 else min(want, cap, budget)
        scheduled = True
        while _missing_blocks(engine, request, take) > engine.free:
            victim = _victim(engine)
            at = engine.running.index(victim)
            _preempt(engine, victim)
            batch.preempted.append(victim)
            for row in [row for row in batch.rows if row.request is victim]:
                batch.rows.remove(row)
                budget += row.tokens
            if victim is request:
                scheduled = False
                break
            if at < position:
                position -= 1
        if scheduled:
            _take(engine, batch, request, take, chunk_of_mid_prefill=request.mid_prefill)
            budget -= take
            position += 1
        elif engine.knobs.policy != PRIORITY:
            break
    return budget


def _waiting_pass(engine: Engine, batch: Batch, budget: int, cap: int, defer: bool) -> bool:
    admitted_prefill = False
    if engine.decode_side is not None:
        budget = engine.decode_side.seat_ready(engine, batch, budget)
    while engine.waiting and budget > 0 and len(engine.running) < engine.knobs.max_num_seqs:
        request = engine.waiting[0]
        if request.remote and engine.decode_side is not None:
            if not engine.decode_side.take_blocks(engine):
                break
            continue
        want = request.known - request.computed
        if defer and want > 1:
            break
        watermark = engine.knobs.watermark_blocks if engine.running else 0
        if -(-request.known // engine.knobs.block_size) + watermark > engine.free:
            break
        engine.waiting.pop(0)
        engine.running.append(request)
        take = min(want, budget) if cap == 0 else min(want, cap, budget)
        _take(engine, batch, request, take, chunk_of_mid_prefill=False)
        budget -= take
        admitted_prefill = admitted_prefill or want > 1
    return admitted_prefill


def _missing_blocks(engine: Engine, request: Request, take: int) -> int:
    return -(-(request.computed + take) // engine.knobs.block_size) - request.blocks


def _take(engine: Engine, batch: Batch, request: Request, take: int, *, chunk_of_mid_prefill: bool) -> None:
    missing = _missing_blocks(engine, request, take)
    request.blocks += missing
    engine.free -= missing
    decode = request.known - request.computed == 1 and request.computed >= request.prompt
    batch.rows.append(Row(request, take, request.computed, decode, chunk_of_mid_prefill=chunk_of_mid_prefill))


def _victim(engine: Engine) -> Request:
    if engine.knobs.policy == PRIORITY:  # max() keeps the first of equals
        return max(engine.running, key=lambda running: (running.priority, running.arrival_s))
    return engine.running[-1]


def _preempt(engine: Engine, victim: Request) -> None:
    engine.running.remove(victim)
    engine.free += victim.blocks
    victim.blocks = 0
    victim.computed = 0
    victim.mid_prefill = False
    victim.preemptions += 1
    enqueue(engine, victim, front=True)


def _advance(row: Row) -> None:
    request = row.request
    request.computed += row.tokens
    request.mid_prefill = request.computed < request.known
    row.emits = not request.mid_prefill
    if row.emits:
        request.in_flight += 1
