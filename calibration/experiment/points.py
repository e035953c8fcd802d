"""Which steps to measure: a fixed list spread over the envelope, and fresh random ones to be judged by.

The fit points stand where a plan will ask: pure decode over batch and context (three quarters of a real run's
time), prompts, chunks after a prefix, several prompts in one step, and mixed steps with their corners, because
outside the measured hull nothing is predicted. Prompts stand close: law and check model are compared between them,
and of few points one that a slow minute spoilt would part the two (benchmarks/spoilt_points.py).
On a CPU every batch from 1 to 8 is measured: small batches are not monotone there. Contexts within a batch differ
(lognormal, sigma 0.5): equal ones would hide what skew costs. Where a point lies depends on the envelope and the
seed, never on a measured time.
The held-out points are log-uniform over the same region, from another random stream, and never fitted.
Units: tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from calibration.experiment.envelope import Envelope
from calibration.steptime import Chunk, StepShape

CONTEXT_SIGMA = 0.5
LOW_CONTEXT_TOKENS = 8
BLOCK_TOKENS = 16
MOST_CHUNKS = 8
# Steps of a low-discrepancy sequence (Roberts 2018, dimension 4): any number of points spreads evenly.
_SPREAD = np.array([0.8566748838545029, 0.733891856627126, 0.6287067210378087, 0.5385972572236101])


@dataclass(frozen=True, slots=True)
class Point:
    """A step to measure and what it is for: "fit", "heldout", "sentinel", "retry" or "retry_heldout"."""

    shape: StepShape
    role: str


@dataclass(frozen=True, slots=True)
class Region:
    """Where points may lie: an envelope, and the tokens the KV pool holds (whole blocks)."""

    envelope: Envelope
    kv_tokens: int

    @property
    def batch(self) -> int:
        return self.envelope.max_batch

    @property
    def context(self) -> int:
        """Longest context before a step: the step adds one token."""
        return self.envelope.max_context_tokens - 1

    @property
    def step(self) -> int:
        return self.envelope.max_step_tokens


def points(region: Region, device_kind: str, seed: int) -> list[Point]:
    """All fit and held-out points, deduplicated. device_kind: "cpu" or "gpu"."""
    rng = np.random.default_rng([seed, 1])
    shapes = [*_decode(region, device_kind, rng), *_prefill(region, rng), *_mixed(region, rng)]
    fit = _distinct(_clipped(shapes, region), set())
    heldout = held_out(region, np.random.default_rng([seed, 2]), taken=set(fit))
    return [Point(shape, "fit") for shape in fit] + [Point(shape, "heldout") for shape in heldout]


def with_points(listed: list[Point], also: Iterable[StepShape], region: Region) -> list[Point]:
    """The list and, to be fitted, the steps of `also` that the region holds and the list has not."""
    held = (shape for shape in also if max(shape.decode_contexts, default=0) <= region.context)
    more = _distinct(_clipped(held, region), {point.shape for point in listed})
    return listed + [Point(shape, "fit") for shape in more]


def held_out(
    region: Region,
    rng: np.random.Generator,
    *,
    taken: set[StepShape],
    counts: tuple[int, int, int] = (4, 2, 6),
) -> list[StepShape]:
    """Random points to judge a fit by: (decode, prefill, mixed), log-uniform over the region, none `taken`."""
    decode, prefill, mixed = counts
    result: list[StepShape] = []
    for kind, count in (("decode", decode), ("prefill", prefill), ("mixed", mixed)):
        found: list[StepShape] = []
        for _ in range(100 * count):  # a tiny envelope may not have that many distinct steps
            if len(found) == count:
                break
            candidate = _random(region, kind, rng, with_prefix=len(found) % 2 == 1)
            found += _distinct(_clipped([candidate], region), {*taken, *result, *found})
        result += found
    return result


def sentinels(region: Region) -> list[Point]:
    """Two steps repeated all through the run to see drift: a decode batch and a mixed step of middling size."""
    batch, context = max(1, region.batch // 2), max(1, region.context // 2)
    query = max(1, min(region.step - batch, region.context) // 4)
    decode = StepShape((context,) * batch)
    mixed = StepShape((context,) * max(1, batch // 2), (Chunk(query, 0, False),))
    return [Point(shape, "sentinel") for shape in _distinct(_clipped([decode, mixed], region), set())]


def warm_up(region: Region) -> list[StepShape]:
    """One step of each kind and the largest ones, so that every buffer has been taken once."""
    longest = min(region.step, region.context)
    shapes = [StepShape((region.context,) * region.batch), StepShape((), (Chunk(longest, 0),))]
    beside = min(region.batch, region.step) - 1
    if beside:
        shapes.append(StepShape((region.context,) * beside, (Chunk(min(region.step - beside, longest), 0),)))
    return _distinct(_clipped(shapes, region), set())


def neighbour(shape: StepShape, region: Region, rng: np.random.Generator) -> StepShape | None:
    """A step like this one with every size changed by up to a quarter, inside the region; None if none is."""

    def near(value: int, low: int, high: int) -> int:
        return int(min(max(round(value * math.exp(rng.uniform(-0.25, 0.25))), low), high))

    rows = near(len(shape.decode_contexts), 1, region.batch) if shape.decode_contexts else 0
    contexts = [int(context) for context in rng.choice(shape.decode_contexts, rows)] if rows else []
    chunks = []
    for chunk in shape.chunks:
        cached = near(chunk.cached_tokens, 0, region.context - 1)
        chunks.append(Chunk(near(chunk.query_tokens, 1, region.context - cached), cached, chunk.samples))
    changed = StepShape(tuple(near(context, 1, region.context) for context in contexts), tuple(chunks))
    return next(iter(_clipped([changed], region)), None)


def _decode(region: Region, device_kind: str, rng: np.random.Generator) -> Iterator[StepShape]:
    low, high = min(LOW_CONTEXT_TOKENS, region.context), region.context
    middle = round(math.sqrt(min(128, high) * high))
    levels = sorted({min(level, region.batch) for level in (1, 8, 32, region.batch)})
    for rows in levels:
        yield StepShape((high,) * rows)
        for nominal in (128, 1_024):
            if nominal < high:
                yield StepShape(_contexts(rows, nominal, region, rng))
    for rows in {1, region.batch}:
        yield StepShape((low,) * rows)
    if device_kind == "cpu":
        for rows in range(1, min(8, region.batch) + 1):
            yield StepShape(_contexts(rows, middle, region, rng))
            yield StepShape((high,) * rows)
    else:  # graph padding: a size and the next, with the same contexts, so that only the padding differs
        for rows in levels:
            if rows < region.batch:
                contexts = _contexts(rows + 1, middle, region, rng)
                yield StepShape(contexts[:-1])
                yield StepShape(contexts)


def _prefill(region: Region, rng: np.random.Generator) -> Iterator[StepShape]:
    longest, deepest = min(region.step, region.context), region.context
    for query in [1, *_geometric(16, longest, 13)]:
        if query <= longest:
            yield StepShape((), (Chunk(query, 0),))
    for query, cached in (
        (longest, deepest - longest),
        (longest // 4, deepest - longest // 4),
        (16, deepest - 16),
        (1, deepest - 1),
    ):
        if query >= 1 and cached >= 1:
            yield StepShape((), (Chunk(query, cached, samples=cached + query == deepest),))
    for prompts, share in ((2, 1.0), (3, 1.0), (4, 1.0), (region.batch, 1.0), (2, 0.2), (3, 0.35), (4, 0.6)):
        tokens = round(share * min(region.step, prompts * deepest))
        if prompts <= min(region.batch, tokens):
            parts = _parts(tokens, prompts, deepest, rng)
            yield StepShape((), tuple(Chunk(query, 0) for query in parts))
    yield from _one_prompt_in_chunks(region)
    query = region.step // 2
    if region.batch >= 2 and 1 <= query < deepest:
        yield StepShape((), (Chunk(query, deepest - query),) * 2)


def _one_prompt_in_chunks(region: Region) -> Iterator[StepShape]:
    """The longest prompt in its chunks, by the largest size and by half of it: what chunking costs, measured.
    Of more than MOST_CHUNKS chunks only the first and the last ones, which still say how the prefix tells."""
    for size in (region.step, region.step // 2):
        if not 1 <= size < region.context:
            continue
        starts = list(range(0, region.context, size))
        if len(starts) > MOST_CHUNKS:
            starts = [*starts[: MOST_CHUNKS // 2], *starts[-MOST_CHUNKS // 2 :]]
        for start in starts:
            query = min(size, region.context - start)
            yield StepShape((), (Chunk(query, start, start + query == region.context),))


def _mixed(region: Region, rng: np.random.Generator) -> Iterator[StepShape]:
    most = min(region.batch - 1, region.step - 1)
    if most < 1:
        return
    low, high = min(LOW_CONTEXT_TOKENS, region.context), region.context
    for rows, context in ((1, low), (1, high), (most, low), (most, high)):
        longest = min(region.step - rows, region.context)
        for query, cached in ((1, 0), (1, high - 1), (longest, 0), (longest, high - longest)):
            # 10 of the 16 corners: alone with a long context or beside a batch, prefixes only where they differ
            if (rows, context) == (1, low) and cached:
                continue
            if (rows, context) in ((1, high), (most, low)) and query == 1 and cached:
                continue
            yield StepShape((context,) * rows, (Chunk(query, cached, samples=cached > 0),))
    start = rng.random(4)
    for index in range(14):
        at = (start + index * _SPREAD) % 1.0
        rows = _between(1, most, at[0])
        query = _between(min(16, region.step - rows), min(region.step - rows, region.context), at[1])
        cached = (
            _between(16, region.context - query, at[2]) if index % 2 and region.context - query > 16 else 0
        )
        nominal = _between(min(64, high), high, at[3])
        contexts = _contexts(rows, nominal, region, rng)
        prompts = min(2 + index // 6, query, region.batch - rows) if index % 3 == 2 else 1
        if prompts > 1:  # several prompts join the same decodes
            parts = _parts(query, prompts, region.context, rng)
            yield StepShape(contexts, tuple(Chunk(part, 0) for part in parts))
        else:
            yield StepShape(contexts, (Chunk(query, cached, samples=index % 3 > 0),))


def _random(region: Region, kind: str, rng: np.random.Generator, *, with_prefix: bool) -> StepShape:
    most = region.batch if kind == "decode" else max(1, min(region.batch - 1, region.step - 1))
    rows = _between(1, most, rng.random())
    nominal = _between(min(32, region.context), region.context, rng.random())
    contexts = () if kind == "prefill" else _contexts(rows, nominal, region, rng)
    if kind == "decode":
        return StepShape(contexts)
    longest = max(1, min(region.step - len(contexts), region.context))
    query = _between(min(16, longest), longest, rng.random())
    room = region.context - query
    cached = _between(16, room, rng.random()) if with_prefix and room > 16 else 0
    return StepShape(contexts, (Chunk(query, cached, bool(rng.random() < 0.5)),))


def _parts(tokens: int, count: int, most: int, rng: np.random.Generator) -> list[int]:
    """So many prompts of unlike lengths, `tokens` together, each from 1 to `most`. Alike and round ones would flatter:
    four prompts of 128 tokens took 60 ms where three of 170 took 71 (demo model, one core); users' are not round."""
    shares = np.exp(CONTEXT_SIGMA * rng.standard_normal(count))
    edges = np.rint(np.cumsum(shares) / shares.sum() * tokens).astype(int)
    found = np.clip(np.diff(edges, prepend=0), 1, most).tolist()
    while sum(found) > tokens:
        found[found.index(max(found))] -= 1
    return [int(part) for part in found]


def _contexts(rows: int, nominal: int, region: Region, rng: np.random.Generator) -> tuple[int, ...]:
    """Lognormal contexts around a median, cut to the envelope; one row has the median itself."""
    drawn = nominal * np.exp(CONTEXT_SIGMA * rng.standard_normal(rows)) if rows > 1 else np.array([nominal])
    return tuple(int(context) for context in np.clip(np.rint(drawn), 1, region.context))


def _clipped(shapes: Iterable[StepShape], region: Region) -> Iterator[StepShape]:
    """Steps inside the region: too many tokens are left out, contexts shrink until the KV pool holds them."""
    for shape in shapes:
        tokens = len(shape.decode_contexts) + sum(chunk.query_tokens for chunk in shape.chunks)
        deepest = max((chunk.query_tokens + chunk.cached_tokens for chunk in shape.chunks), default=0)
        rows = len(shape.decode_contexts) + len(shape.chunks)
        if tokens > region.step or deepest > region.context + 1 or rows > region.batch:
            continue
        while _pool_tokens(shape) > region.kv_tokens and max(shape.decode_contexts, default=0) > 1:
            # a little less than proportional: whole blocks are what counts
            ratio = 0.97 * region.kv_tokens / _pool_tokens(shape)
            contexts = tuple(max(1, int(context * ratio)) for context in shape.decode_contexts)
            shape = StepShape(contexts, shape.chunks)
        if _pool_tokens(shape) <= region.kv_tokens:
            yield shape


def _pool_tokens(shape: StepShape) -> int:
    sizes = [context + 1 for context in shape.decode_contexts]
    sizes += [chunk.query_tokens + chunk.cached_tokens for chunk in shape.chunks]
    return sum(-(-size // BLOCK_TOKENS) * BLOCK_TOKENS for size in sizes)


def _distinct(shapes: Iterable[StepShape], taken: set[StepShape]) -> list[StepShape]:
    """The shapes once each, in order, without those taken (order of rows does not matter to a step)."""
    seen = {_canonical(shape) for shape in taken}
    result = []
    for shape in shapes:
        if _canonical(shape) not in seen:
            seen.add(_canonical(shape))
            result.append(shape)
    return result


def _canonical(shape: StepShape) -> tuple[object, ...]:
    chunks = sorted((chunk.query_tokens, chunk.cached_tokens) for chunk in shape.chunks)
    return tuple(sorted(shape.decode_contexts)), tuple(chunks)


def _geometric(low: int, high: int, count: int) -> list[int]:
    if high <= low:
        return [high]
    return [round(low * (high / low) ** (index / (count - 1))) for index in range(count)]


def _between(low: int, high: int, share: float) -> int:
    """The whole number at `share` of the way from low to high on a logarithmic scale."""
    if high <= low:
        return max(1, high)
    return int(min(high, max(low, round(low * (high / low) ** share))))
