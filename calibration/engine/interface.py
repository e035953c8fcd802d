"""What an experiment needs of an engine, without importing one: the only part of the engine's door in sight
of code that runs where torch is not installed.

`Runner` has three implementations: runner.TorchRunner in this process, client.EngineClient in another one, and
the formulas of the tests. Units: seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

#: (query tokens, tokens cached before them, whether the chunk's last token is sampled)
ChunkTuple = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class StepTiming:
    """seconds: the step on the device. host_gap_s: host work around it. contended: whether others ran too."""

    seconds: float
    host_gap_s: float
    contended: bool


@dataclass(frozen=True, slots=True)
class ServedStep:
    """One step over real sequences; the fields of batch.StepBatch as plain lists, which is how they travel."""

    token_ids: list[int]
    query_tokens: list[int]
    cached_tokens: list[int]
    block_tables: list[list[int]]
    sampled: list[bool]


class ServingRunner(Protocol):
    """An engine that serves sequences and hands their KV blocks on (client.EngineClient, or the formulas of the
    tests)."""

    def serve(self, step: ServedStep) -> tuple[StepTiming, list[int]]:
        """Runs one step: how long it took, and the token of each sampled row."""

    def export_kv(self, blocks: Sequence[int]) -> float:
        """Puts blocks where the other engine finds them; seconds."""

    def import_kv(self, blocks: Sequence[int]) -> float:
        """Takes what was exported last into these blocks; seconds."""


class Runner(Protocol):
    def environment(self) -> dict[str, object]:
        """Device, versions, dtype, sizes: JSON-safe, recorded with the results."""

    def measure(
        self,
        decode_contexts: Sequence[int],
        chunks: Sequence[ChunkTuple],
        seed: int,
        *,
        lead_in: Sequence[int] = (),
    ) -> StepTiming:
        """Runs one step of the shape on fresh random inputs (see batch.random_batch) and times it. `lead_in`: contexts
        of decodes that run as a step of their own before it, untimed, with the host's work between the two as between
        any two steps (none: what ran last stays before it)."""

    def usage(self) -> dict[str, float]:
        """cpu_s that the engine has used so far and its peak_bytes of memory."""
