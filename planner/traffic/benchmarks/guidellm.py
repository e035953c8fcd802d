"""GuideLLM reports of both schemas (0.2 and 0.8): `benchmarks`, each with metrics by status.

Its inter_token_latency is a request's mean gap without the first token (TPOT here); its
time_per_output_token is E2E / output and counts the first token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.traffic.benchmarks.run import Run, count, number, part


def report(document: Mapping[str, Any]) -> list[Run]:
    runs = document.get("benchmarks")
    return [_run(run) for run in runs if isinstance(run, Mapping)] if isinstance(runs, list) else []


def _run(run: Mapping[str, Any]) -> Run:
    metrics = run.get("metrics") or {}
    totals = part(metrics, "request_totals") or run.get("request_totals") or {}
    strategy = part(run, "config", "strategy") or part(run, "args", "strategy") or {}
    kind = str(strategy.get("type_", "")) if isinstance(strategy, Mapping) else ""
    asked = number(part(strategy, "rate")) if kind in ("constant", "poisson", "async") else None
    duration_s = number(run.get("duration"))
    requests = count(part(totals, "successful"))
    failed = (count(part(totals, "errored")) or 0) + (count(part(totals, "incomplete")) or 0)
    stated = _mean(metrics, "requests_per_second")
    rate, remarks = stated, []
    if requests and duration_s and stated and abs(stated * duration_s / requests - 1) > 0.2:
        # Its rate is a mean over changes of a step function; few requests make it another number.
        rate = requests / duration_s
        remarks.append(
            f"It states {stated:.4g} requests/s, but {requests} ended well in {duration_s:.4g} s, {rate:.4g}/s, "
            "which is used."
        )
    return Run(
        label=f"{kind} {asked:g}/s" if asked else kind,
        requests=requests, failed=failed, duration_s=duration_s, requested_rate_per_s=asked, rate_per_s=rate,
        concurrency=_mean(metrics, "request_concurrency"), prompt_tokens=_mean(metrics, "prompt_token_count"),
        output_tokens=_mean(metrics, "output_token_count"), ttft_s=_mean(metrics, "time_to_first_token_ms", 1e-3),
        tpot_s=_mean(metrics, "inter_token_latency_ms", 1e-3), e2e_s=_mean(metrics, "request_latency"),
        e2e_per_token_s=_mean(metrics, "time_per_output_token_ms", 1e-3),
        ttft_p99_s=number(part(metrics, "time_to_first_token_ms", "successful", "percentiles", "p99"), 1e-3),
        itl_of_requests=part(metrics, "inter_token_latency_ms", "successful") is not None, remarks=tuple(remarks),
    )  # fmt: skip


def _mean(metrics: Mapping[str, Any], name: str, scale: float = 1.0) -> float | None:
    return number(part(metrics, name, "successful", "mean"), scale)
