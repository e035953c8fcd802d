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


class Runner(Protocol):
    def environment(self) -> dict[str, object]:
        """Device, versions, dtype, sizes: JSON-safe, recorded with the results."""

    def measure(self, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple], seed: int) -> StepTiming:
        """Runs one step of the shape on fresh random inputs (see batch.random_batch) and times it."""

    def usage(self) -> dict[str, float]:
        """cpu_s that the engine has used so far and its peak_bytes of memory."""
