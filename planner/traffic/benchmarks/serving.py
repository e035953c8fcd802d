"""vLLM's benchmark_serving and SGLang's bench_serving: one flat object a run.

Their own files write milliseconds and say so in the key (mean_ttft_ms). Published copies drop the suffix and
convert to seconds, or do not: where the key has no unit, the one that agrees with Little's law is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.traffic.benchmarks.run import Run, count, number

_KEYS = {
    "ttft": ("ttft",),
    "tpot": ("tpot",),
    "itl": ("itl",),
    "e2e": ("e2el", "e2e_latency"),
}


def serving(document: Mapping[str, Any]) -> list[Run]:
    statistic = "mean" if any(key.startswith("mean_") for key in document) else "median"
    scale, remarks = _scale(document, statistic)
    rate_text = document.get("request_rate")
    unlimited = rate_text == "inf" or (isinstance(rate_text, float) and rate_text == float("inf"))
    requests = count(document.get("completed"))
    duration_s = number(document.get("duration"))
    rate = number(document.get("request_throughput"))
    if rate is None and requests and duration_s:
        rate = requests / duration_s
    outputs, prompts = number(document.get("total_output_tokens")), number(document.get("total_input_tokens"))
    asked = count(document.get("num_prompts"))
    return [
        Run(
            statistic=statistic, requests=requests, duration_s=duration_s,
            failed=asked - requests if asked is not None and requests is not None and asked >= requests else None,
            requested_rate_per_s=number(rate_text), rate_per_s=rate,
            concurrency_cap=number(document.get("max_concurrency")),
            prompt_tokens=prompts / requests if prompts is not None and requests else None,
            output_tokens=outputs / requests if outputs is not None and requests else None,
            ttft_s=_figure(document, statistic, "ttft", scale), tpot_s=_figure(document, statistic, "tpot", scale),
            itl_s=_figure(document, statistic, "itl", scale), e2e_s=_figure(document, statistic, "e2e", scale),
            itl_p50_s=_figure(document, "median", "itl", scale), itl_p99_s=_figure(document, "p99", "itl", scale),
            ttft_p99_s=_figure(document, "p99", "ttft", scale),
            retokenized_output_tokens=count(document.get("total_output_tokens_retokenized")),
            unlimited_rate=unlimited, remarks=tuple(remarks),
        )
    ]  # fmt: skip


def _figure(document: Mapping[str, Any], statistic: str, name: str, scale: float) -> float | None:
    for key in _KEYS[name]:
        with_unit = number(document.get(f"{statistic}_{key}_ms"), 1e-3)
        if with_unit is not None:
            return with_unit
        bare = number(document.get(f"{statistic}_{key}"), scale)
        if bare is not None:
            return bare
    return None


def _scale(document: Mapping[str, Any], statistic: str) -> tuple[float, list[str]]:
    """Seconds per unit of keys without one, and what was concluded."""
    bare = [
        f"{statistic}_{key}" for keys in _KEYS.values() for key in keys if f"{statistic}_{key}" in document
    ]
    if not bare:
        return 1.0, []
    e2e = next((number(document.get(f"{statistic}_{key}")) for key in _KEYS["e2e"]
                if f"{statistic}_{key}" in document), None)  # fmt: skip
    rate, cap = number(document.get("request_throughput")), number(document.get("max_concurrency"))
    if e2e is None or not rate or not cap:
        return 1.0, [f"{bare[0]} has no unit; seconds were assumed, and nothing in the file settles it."]
    unit, scale = min((("seconds", 1.0), ("milliseconds", 1e-3)), key=lambda u: abs(rate * e2e * u[1] - cap))
    return scale, [f"{bare[0]} has no unit: {unit} agree with throughput x E2E = {cap:g} in flight."]
