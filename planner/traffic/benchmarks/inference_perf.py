"""inference-perf: stage_N_lifecycle_metrics.json and summary_lifecycle_metrics.json, all times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.traffic.benchmarks.run import Run, count, number, part


def lifecycle(document: Mapping[str, Any]) -> list[Run]:
    load, good = document.get("load_summary") or {}, document.get("successes") or {}

    def figure(name: str, statistic: str = "mean") -> float | None:
        return number(part(good, "latency", name, statistic))

    asked = number(part(load, "requested_rate"))
    sent = number(part(load, "achieved_rate"))
    answered = number(part(good, "throughput", "requests_per_sec"))
    remarks = []
    if asked and sent and sent >= 0.95 * asked and answered is not None and answered < 0.95 * asked:
        remarks.append(
            f"{sent:.4g} requests/s were sent but {answered:.4g} answered: the server fell behind, so its times "
            "grow with the length of the run."
        )
    delay_s = number(part(load, "schedule_delay", "mean"))
    e2e_s = figure("request_latency")
    if delay_s is not None and e2e_s and delay_s > 0.05 * e2e_s:
        remarks.append(
            f"Requests were sent {delay_s:.3g} s late on average: the client could not keep up with its schedule."
        )
    return [
        Run(
            label=f"{asked:g} requests/s" if asked else "all stages",
            requests=count(good.get("count")), failed=count(part(document, "failures", "count")),
            duration_s=number(part(load, "send_duration")), requested_rate_per_s=asked,
            rate_per_s=sent if asked and sent is not None and sent < 0.95 * asked else answered,
            prompt_tokens=number(part(good, "prompt_len", "mean")),
            output_tokens=number(part(good, "output_len", "mean")), ttft_s=figure("time_to_first_token"),
            tpot_s=figure("time_per_output_token"), itl_s=figure("inter_token_latency"),
            itl_p50_s=figure("inter_token_latency", "median"), itl_p99_s=figure("inter_token_latency", "p99"),
            ttft_p99_s=figure("time_to_first_token", "p99"), e2e_s=e2e_s, remarks=tuple(remarks),
        )
    ]  # fmt: skip
