"""What both assemblers of the reference work on: requests, the two lists they stand in, and KV blocks.

A request has `computed` tokens catching up with `known = prompt + generated`; with a result outstanding its token
is "in flight" and counts as known. It holds the blocks its computed tokens fill or, where an admission allocates the
whole prompt, those of all known tokens until they are computed. With a prefix cache an admitted request begins behind
the blocks that the cache has of it (`reference_prefix`). Tokens and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from planner.simulation.luck import is_accepted, threshold_of
from planner.simulation.profile import Profile
from planner.simulation.reference_prefix import Block, PrefixCache


@dataclass(slots=True, eq=False)
class Request:
    index: int
    arrival_s: float
    prompt: int
    output: int
    priority: int
    tie: int
    limit: int = 0  # most outputs the client asked for: what reservations and estimates count; 0: the outputs
    assumed_tokens: int = 0  # taken to be cached when it is first admitted
    computed: int = 0
    generated: int = 0
    in_flight: int = 0
    blocks: int = 0
    mid_prefill: bool = False  # some known tokens were left uncomputed when it was last scheduled
    preemptions: int = 0
    hit_tokens: int = 0
    rehit_tokens: int = 0
    # in a cluster: blocks of its prompt that were fetched, of use if the cache has those before (reference_prefix_pool)
    fetched_from: int = 0
    fetched_to: int = 0  # but not this one
    pool_hit_tokens: int = 0
    # speculative decoding
    luck: int = 0  # see `luck.keys_of`
    drafts: int = 0  # guessed, to be checked by its next row
    ahead: int = 0  # drafts in flight that the scheduler takes to be accepted and that are not
    victim_tie: int = 0  # see `workload.Workload`
    remote: bool = False  # waiting for blocks only: its KV cache comes from a prefill replica

    def __post_init__(self) -> None:
        self.limit = self.limit or self.output

    @property
    def emitted(self) -> int:
        return self.generated + self.in_flight

    @property
    def known(self) -> int:
        return self.prompt + self.emitted

    @property
    def left(self) -> int:
        return self.known - self.computed

    @property
    def exhausted(self) -> bool:
        """One token is to come and a step is in flight: nothing more to compute, but seat and blocks are still taken.

        A step in flight may bring its last token together with accepted drafts: nobody knows yet, so it gets a row
        for nothing.
        """
        return self.in_flight > 0 and self.generated + 1 >= self.output

    @property
    def decodes(self) -> bool:
        return not (self.mid_prefill or self.exhausted)

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
    was_mid_prefill: bool = False
    drafts: int = 0  # of the tokens
    rejected: int = 0  # of the drafts
    padded: bool = False  # its drafts are nobody's, to be rejected
    emitted: int = 0  # tokens
    logits: int = 0  # tokens that logits are computed for


@dataclass(slots=True)
class Batch:
    rows: list[Row] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    tokens: int = 0
    served: set[int] = field(default_factory=set)  # indices of the rows' requests


class DecodeSide(Protocol):
    """What a replica that takes over prefilled requests does in its waiting pass (cluster.reference_decode_side)."""

    @property
    def holds_blocks(self) -> bool: ...

    def seat_ready(self, engine: Engine, batch: Batch, padding: int) -> bool: ...

    def take_blocks(self, engine: Engine) -> bool: ...

    def take_over(self, engine: Engine) -> None: ...


@dataclass(slots=True)
class Engine:
    profile: Profile
    free: int
    running: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    # assembler A, in order
    executed: int = 0
    last_prefill_step: int = 0
    capacity_bound: bool = False
    # assembler A, apart: prompts and decodes both have work, and time since they both have had
    sharing: bool = False
    shared_s: float = 0.0
    prefill_s: float = 0.0
    # assembler B
    shut: bool = False  # nobody is admitted until a request leaves
    ratio: float = 0.0
    gap_left: int = 0
    in_gap: bool = False  # this schedule was of decodes only, by the cadence
    # in a cluster: the other side of a hand-off, and blocks spoken for beside those of the running requests
    decode_side: DecodeSide | None = None
    cache: PrefixCache | None = None
    set_aside: int = 0


def enqueue(engine: Engine, request: Request) -> None:
    engine.waiting.append(request)
    if engine.profile.by_priority:
        engine.waiting.sort(key=lambda waiting: waiting.queue_key)


def admit(engine: Engine, request: Request) -> None:
    engine.waiting.remove(request)
    engine.running.append(request)


def cached_of(engine: Engine, request: Request) -> tuple[int, list[Block]]:
    """Tokens that a waiting request need not compute, and the cached blocks that hold them (none for assumed ones)."""
    if engine.cache is None:
        return 0, []
    if _is_assumed(request):
        return request.assumed_tokens, []
    hits = engine.cache.hits(request.index, request.known)
    hits = hits[: max(0, len(hits) - engine.profile.dropped_hits)]
    blocks = len(hits)
    if request.preemptions == 0 and request.fetched_from <= blocks < request.fetched_to:
        blocks = request.fetched_to
    return blocks * engine.profile.block_size, hits


def _is_assumed(request: Request) -> bool:
    return request.assumed_tokens > 0 and request.preemptions == 0


def take_cached(engine: Engine, request: Request, cached_tokens: int, hits: list[Block]) -> None:
    """A request that was just admitted begins behind what was cached of it."""
    if engine.cache is None:
        return
    engine.free -= sum(block.holders == 0 for block in hits)
    if engine.profile.dropped_hits and not _is_assumed(request):
        engine.cache.drop(engine.cache.hits(request.index, request.known)[len(hits) :])
    engine.cache.hold(request.index, hits)
    request.blocks = len(hits)
    request.computed = cached_tokens
    if request.preemptions == 0:
        fetched = cached_tokens - len(hits) * engine.profile.block_size if request.fetched_to else 0
        request.pool_hit_tokens = fetched
        request.hit_tokens = cached_tokens - fetched
    else:
        request.rehit_tokens += cached_tokens


def release(engine: Engine, request: Request) -> None:
    """Its blocks are free, but for those that others hold too."""
    if engine.cache and request.blocks:
        engine.free += engine.cache.release(request.index, request.computed)
    else:
        engine.free += request.blocks
    request.blocks = 0


def blocks_for(engine: Engine, tokens: int) -> int:
    return -(-tokens // engine.profile.block_size)


def missing_blocks(engine: Engine, request: Request, take: int) -> int:
    """Blocks to take from the pool before `take` more tokens of the request are computed."""
    tokens = request.computed + take + request.ahead + engine.profile.lookahead
    if engine.profile.whole_prompt and (request.mid_prefill or request.computed == 0):
        tokens = request.known
    return max(0, blocks_for(engine, tokens) - request.blocks)  # those of rejected drafts are kept


def whole_future(engine: Engine, request: Request) -> int:
    """Blocks for its prompt and all outputs that the client allowed."""
    return blocks_for(engine, request.prompt + request.limit)


def give(engine: Engine, batch: Batch, request: Request, take: int) -> None:
    """A row of the batch, and the blocks for it."""
    missing = missing_blocks(engine, request, take)
    request.blocks += missing
    engine.free -= missing
    if engine.cache:
        engine.cache.extend(request.index, missing)
        there = request.prompt + request.generated - engine.profile.named_ahead
        engine.cache.learn(request.index, min(request.computed + take, there))
    decode = request.left == 1 and request.computed >= request.prompt
    drafts = max(0, take - request.left)
    batch.rows.append(
        Row(
            request,
            take,
            request.computed,
            decode,
            was_mid_prefill=request.mid_prefill,
            drafts=drafts,
            padded=drafts > request.drafts,
        )
    )
    request.drafts = 0
    batch.served.add(request.index)
    batch.tokens += take


def serve(
    engine: Engine,
    batch: Batch,
    requests: Sequence[Request],
    limit: int,
    most_each: int,
    *,
    decodes: bool = False,
) -> None:
    """Give tokens to running requests, in order, until the batch holds `limit` tokens, preempting when blocks are
    short. First come, first served: who is preempted for itself ends the pass."""
    profile = engine.profile
    for request in requests:
        if request not in engine.running or request.index in batch.served:
            continue
        take = min(request.left + request.drafts, most_each, limit - batch.tokens)
        if take <= 0:
            break
        spare = 1 if decodes and profile.spare_block else 0
        lost = False
        while max(missing_blocks(engine, request, take), spare) > engine.free and not lost:
            worst = victim(engine)
            preempt(engine, batch, worst)
            lost = worst is request
        if not lost:
            give(engine, batch, request, take)
        elif not profile.by_priority:
            break


def victim(engine: Engine) -> Request:
    if engine.profile.by_priority:  # max() keeps the first of equals
        return max(
            engine.running, key=lambda running: (running.priority, running.arrival_s, running.victim_tie)
        )
    return engine.running[-1]


def preempt(engine: Engine, batch: Batch, request: Request) -> None:
    """Blocks, progress and seat are gone; tokens it got in this step leave the batch."""
    if request.index in batch.served:
        batch.tokens -= sum(row.tokens for row in batch.rows if row.request is request)
        batch.rows = [row for row in batch.rows if row.request is not request]
        batch.served.remove(request.index)
    batch.preempted.append(request)
    engine.running.remove(request)
    release(engine, request)
    request.computed = request.drafts = request.ahead = 0
    request.mid_prefill = False
    request.preemptions += 1
    if engine.profile.by_priority or engine.profile.fewest_outputs:
        enqueue(engine, request)
    else:
        engine.waiting.insert(0, request)


def advance(engine: Engine, batch: Batch) -> None:
    """The rows, in running order, move `computed` on; who has caught up emits a token and the accepted drafts, in
    flight until delivered. What rejected drafts computed does not count."""
    places = {id(request): place for place, request in enumerate(engine.running)}
    batch.rows.sort(key=lambda row: places[id(row.request)])
    for row in batch.rows:
        request = row.request
        if request.emitted >= request.output:  # nobody knows yet
            row.logits = 1 + row.drafts
            continue
        request.computed += row.tokens - row.drafts
        request.mid_prefill = request.computed < request.known
        row.emits = not request.mid_prefill
        if row.emits:
            _emit(engine.profile, row)


def _emit(profile: Profile, row: Row) -> None:
    request, accepted = row.request, 0
    threshold = threshold_of(profile.acceptance_rate)
    most = 0 if row.padded else min(row.drafts, request.output - request.emitted - 1)
    while accepted < most and is_accepted(request.luck, request.emitted + accepted, threshold):
        accepted += 1
    row.logits = 1 + row.drafts
    row.emitted = 1 + accepted
    row.rejected = row.drafts - accepted
    request.in_flight += row.emitted
    request.computed += accepted
    request.ahead += row.rejected
    request.drafts = profile.drafts


def note_time(engine: Engine, batch: Batch, seconds: float) -> None:
    """The account that shares of time are kept by (see `reference_mixed`)."""
    if not engine.sharing:
        return
    engine.shared_s += seconds
    if any(not row.decode for row in batch.rows):
        engine.prefill_s += seconds


def arrive(engine: Engine, row: Row) -> None:
    """The tokens of a row are known; so is which drafts were rejected, unless the request was preempted since."""
    request = row.request
    request.in_flight -= row.emitted
    request.generated += row.emitted
    if request in engine.running:
        request.ahead -= row.rejected


def deliver(engine: Engine, batch: Batch) -> int:
    """Apply a step's result: tokens in flight become generated; finished requests leave. Returns how many did."""
    finished = 0
    for row in batch.rows:
        if not row.emits:
            continue
        request = row.request
        arrive(engine, row)
        if engine.cache and request in engine.running:
            engine.cache.learn(request.index, request.computed - request.in_flight)
        if request.generated == request.output:
            finished += 1
            # preempted with its last token in flight, it finishes in the queue, without blocks
            (engine.running if request in engine.running else engine.waiting).remove(request)
            release(engine, request)
            engine.shut = False
    return finished
