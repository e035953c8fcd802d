"""What it costs to cut a prompt into chunks, per chunk size: by the fitted law, and by what was measured.

A prompt of T tokens in chunks of C needs k = ceil(T / C) passes. Each reads the weights again (k - 1 re-reads) and
every chunk after the first reads the KV of all before it (prefix re-reads: C + 2C + ... tokens); the last chunk has
what is left. The time is the sum over the chunks, each after its prefix, against one pass over the whole prompt. A
total counts as measured when every chunk's very shape was timed; as covered when the calibration covers each of them.
Units: tokens, bytes, seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibration.steptime import Chunk, StepSample, StepShape, StepTimeModel, features_of

SMALLEST_CHUNK = 16
OCTAVES = 6


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """One chunk size on one prompt. `measured_s` None where a chunk's shape was not timed; `against_one_pass` is the
    ratio of fitted totals, None where one pass is beyond what was measured."""

    prompt_tokens: int
    chunk_tokens: int
    passes: int
    weight_rereads: int
    weight_bytes: int
    prefix_reread_tokens: int
    prefix_reread_bytes: int
    last_chunk_tokens: int
    fitted_s: float
    measured_s: float | None
    against_one_pass: float | None
    covered: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def chunks_of(prompt_tokens: int, chunk_tokens: int) -> list[Chunk]:
    """The chunks of a prompt in order; the last completes it and is sampled. Raises ValueError for sizes below 1."""
    if prompt_tokens < 1 or chunk_tokens < 1:
        raise ValueError("prompt and chunk have one token at least")
    starts = range(0, prompt_tokens, chunk_tokens)
    sizes = [(start, min(chunk_tokens, prompt_tokens - start)) for start in starts]
    return [Chunk(size, start, start + size == prompt_tokens) for start, size in sizes]


def chunk_sizes(largest: int) -> list[int]:
    """`largest` and its halves, down to SMALLEST_CHUNK or OCTAVES of them."""
    return sorted(
        {max(1, largest >> k) for k in range(OCTAVES) if largest >> k >= min(SMALLEST_CHUNK, largest)}
    )


def chunk_costs(
    model: StepTimeModel,
    samples: Sequence[StepSample],
    *,
    prompt_tokens: int,
    sizes: Sequence[int],
    weight_bytes: int,
    kv_bytes_per_token: int,
) -> list[ChunkCost]:
    """One row per chunk size, and the whole prompt as the last where it is not one of them."""
    timed: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        if not sample.shape.decode_contexts and len(sample.shape.chunks) == 1 and sample.role != "outside":
            chunk = sample.shape.chunks[0]
            timed.setdefault((chunk.query_tokens, chunk.cached_tokens), []).append(sample.median_s)
    whole = StepShape((), (Chunk(prompt_tokens, 0),))
    one_pass_s = float(model.predict_s(features_of([whole]))[0])
    one_pass_covered = bool(model.covered(features_of([whole]))[0])
    found = []
    for size in sorted(
        {min(size, prompt_tokens) for size in sizes} | ({prompt_tokens} if one_pass_covered else set())
    ):
        chunks = chunks_of(prompt_tokens, size)
        features = features_of(StepShape((), (chunk,)) for chunk in chunks)
        seconds = float(model.predict_s(features).sum())
        own = [timed.get((chunk.query_tokens, chunk.cached_tokens)) for chunk in chunks]
        measured = [sum(values) / len(values) for values in own if values]
        reread = sum(chunk.cached_tokens for chunk in chunks)
        found.append(
            ChunkCost(
                prompt_tokens=prompt_tokens,
                chunk_tokens=size,
                passes=len(chunks),
                weight_rereads=len(chunks) - 1,
                weight_bytes=len(chunks) * weight_bytes,
                prefix_reread_tokens=reread,
                prefix_reread_bytes=reread * kv_bytes_per_token,
                last_chunk_tokens=chunks[-1].query_tokens,
                fitted_s=seconds,
                measured_s=sum(measured) if len(measured) == len(chunks) else None,
                against_one_pass=seconds / one_pass_s if one_pass_covered else None,
                covered=bool(model.covered(features).all()),
            )
        )
    return found
