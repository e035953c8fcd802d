"""What one run of a load generator reports, in SI units and under one set of names.

The tools disagree about units (vLLM writes milliseconds, inference-perf and LLMPerf seconds) and about words:
GuideLLM's "time per output token" counts the first token, LLMPerf's "inter-token latency" as well, AIPerf's
"inter token latency" is what is called TPOT here (the mean gap of a request, without the first token). Each
reader translates into these fields, and None means that the file does not say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One load level. Times in seconds, rates per second, lengths in tokens; `statistic` is of the times.

    concurrency is the mean number of requests in flight as the file states it, concurrency_cap the most that
    the client allowed; tpot_s excludes the first token; e2e_per_token_s is E2E / output where a tool reports
    that; itl_of_requests says that what it calls ITL is one mean a request; zeros are figures that the tool wrote
    as 0."""

    label: str = ""
    statistic: str = "mean"
    requests: int | None = None
    failed: int | None = None
    duration_s: float | None = None
    requested_rate_per_s: float | None = None
    rate_per_s: float | None = None
    concurrency: float | None = None
    concurrency_cap: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    itl_p50_s: float | None = None
    itl_p99_s: float | None = None
    ttft_p99_s: float | None = None
    e2e_s: float | None = None
    e2e_per_token_s: float | None = None
    itl_of_requests: bool = False
    retokenized_output_tokens: int | None = None
    unlimited_rate: bool = False
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe: every number is finite."""
        return {**asdict(self), "remarks": list(self.remarks)}


def number(value: object, scale: float = 1.0) -> float | None:
    """A finite number of a document, scaled; None for anything else (a truth value, text, Infinity)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        scaled = float(value) * scale
    except OverflowError:
        return None
    return scaled if math.isfinite(scaled) else None


def count(value: object) -> int | None:
    found = number(value)
    return None if found is None else round(found)


def part(document: object, *path: str) -> Any:
    """document[path[0]][path[1]]...; None where the way ends early."""
    for key in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
