"""A flat object of somebody's own with figures of a run: keys are read by their words and their unit.

request_latency_mean_s, ttft_p99_ms, requested_rate: a statistic, a figure and a unit in any order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from planner.traffic.benchmarks.run import Run, count, number

_FIGURES = (
    ("ttft", ("ttft", "time_to_first_token")),
    ("tpot", ("tpot", "time_per_output_token")),
    ("itl", ("itl", "inter_token_latency")),
    ("e2e", ("e2e", "e2el", "request_latency", "end_to_end_latency", "e2e_latency")),
)
_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}
_STATISTICS = {"mean": "mean", "avg": "mean", "median": "p50", "p50": "p50", "p99": "p99"}


def generic(document: Mapping[str, Any]) -> list[Run]:
    figures: dict[tuple[str, str], float] = {}
    for key, value in document.items():
        words = re.split(r"[^a-z0-9]+", key.lower())
        scale = next((_UNITS[word] for word in reversed(words) if word in _UNITS), None)
        statistic = next((_STATISTICS[word] for word in words if word in _STATISTICS), None)
        name = next((name for name, starts in _FIGURES if any(s in key.lower() for s in starts)), None)
        found = number(value, scale or 1.0)
        if name and statistic and found is not None and scale:
            figures[name, statistic] = found

    def first(*keys: str) -> float | None:
        return next((v for v in (number(document.get(key)) for key in keys) if v is not None), None)

    return [
        Run(
            requests=count(first("requests", "completed", "num_requests")), failed=count(first("failures", "failed")),
            duration_s=first("duration", "duration_s"), requested_rate_per_s=first("requested_rate", "request_rate"),
            rate_per_s=first("achieved_rate", "request_throughput", "requests_per_second"),
            concurrency=first("concurrency"), concurrency_cap=first("client_max_in_flight", "max_concurrency"),
            prompt_tokens=first("input_len_mean", "prompt_len_mean", "mean_input_tokens"),
            output_tokens=first("output_len_mean", "mean_output_tokens"),
            ttft_s=figures.get(("ttft", "mean")), tpot_s=figures.get(("tpot", "mean")),
            itl_s=figures.get(("itl", "mean")), itl_p50_s=figures.get(("itl", "p50")),
            itl_p99_s=figures.get(("itl", "p99")), ttft_p99_s=figures.get(("ttft", "p99")),
            e2e_s=figures.get(("e2e", "mean")),
        )
    ]  # fmt: skip
