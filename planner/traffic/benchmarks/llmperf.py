"""LLMPerf: a list of requests, or a summary of quantiles; seconds. Its inter_token_latency counts the first
token as well, so it is E2E / output and no TPOT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.traffic.benchmarks.run import Run, count, mean, number


def individual(rows: Sequence[Any]) -> list[Run]:
    good = [row for row in rows if isinstance(row, Mapping) and row.get("error_code") is None]

    def average(key: str) -> float | None:
        return mean([value for value in (number(row.get(key)) for row in good) if value is not None])

    return [
        Run(
            requests=len(good), failed=len(rows) - len(good), prompt_tokens=average("number_input_tokens"),
            output_tokens=average("number_output_tokens"), ttft_s=average("ttft_s"),
            e2e_s=average("end_to_end_latency_s"), e2e_per_token_s=average("inter_token_latency_s"),
            itl_of_requests=average("inter_token_latency_s") is not None,
        )
    ]  # fmt: skip


def summary(document: Mapping[str, Any]) -> list[Run]:
    def figure(name: str, statistic: str = "mean") -> float | None:
        return number(document.get(f"results_{name}_{statistic}"))

    completed = count(document.get("results_num_completed_requests"))
    per_minute = number(document.get("results_num_completed_requests_per_min"))
    return [
        Run(
            requests=completed, failed=count(document.get("results_number_errors")),
            rate_per_s=per_minute / 60 if per_minute is not None else None,
            concurrency_cap=number(document.get("num_concurrent_requests")), unlimited_rate=True,
            prompt_tokens=figure("number_input_tokens"), output_tokens=figure("number_output_tokens"),
            ttft_s=figure("ttft_s"), e2e_s=figure("end_to_end_latency_s"),
            e2e_per_token_s=figure("inter_token_latency_s"), ttft_p99_s=figure("ttft_s", "quantiles_p99"),
            itl_of_requests=figure("inter_token_latency_s") is not None,
        )
    ]  # fmt: skip
