"""AIPerf and GenAI-Perf: an object of metrics with units, the same as CSV, or one JSON line a request."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.traffic.benchmarks.run import Run, count, mean, number, part

_SCALE = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}
_NAMES = {
    "ttft": ("ttft", "time_to_first_token"),
    "e2e": ("request_latency",),
    "tpot": ("inter_token_latency",),
    "output": ("output_sequence_length",),
    "prompt": ("input_sequence_length",),
    "rate": ("request_throughput",),
    "requests": ("request_count",),
    "failed": ("error_request_count",),
    "duration": ("benchmark_duration",),
}


def summary(document: Mapping[str, Any]) -> list[Run]:
    """profile_export_aiperf.json (metrics under `records` or at the top) or profile_export_genai_perf.json."""
    records = document.get("records")
    return [_run(records if isinstance(records, Mapping) else document, document)]


def table(text: str) -> list[Run]:
    """The CSV: blocks of "Metric,avg,..." and "Metric,Value", units in parentheses behind the names."""
    metrics: dict[str, dict[str, Any]] = {}
    header: list[str] = []
    for row in csv.reader(text.splitlines()):
        cells = [cell.strip() for cell in row]
        if not cells or not cells[0]:
            continue
        if cells[0] == "Metric":
            header = cells
            continue
        name, _, unit = cells[0].partition("(")
        values = {key: _float(cell) for key, cell in zip(header[1:], cells[1:], strict=False)}
        key = re.sub(r"\W+", "_", name.strip().lower())
        metrics.setdefault(key, {"unit": unit.rstrip(")"), "avg": values.get("Value"), **values})
    return [_run(metrics, {})]


def lines(text: str) -> list[Run]:
    """profile_export.jsonl: metadata and metrics of each request; errors have an `error`."""
    good: list[Mapping[str, Any]] = []
    failed = 0
    for row in _objects(text):
        metrics = row.get("metrics")
        if row.get("error") or not isinstance(metrics, Mapping) or "request_latency" not in metrics:
            failed += 1
        else:
            good.append({**metrics, "sent_ns": part(row, "metadata", "timestamp_ns")})
    values = {
        key: [v for v in (_value(row, names) for row in good) if v is not None]
        for key, names in _NAMES.items()
        if key in ("ttft", "e2e", "tpot", "output", "prompt")
    }
    sent_s = [t for t in (number(row["sent_ns"], 1e-9) for row in good) if t is not None]
    rate = duration = None
    if len(sent_s) == len(values["e2e"]) > 1:
        duration = max(a + b for a, b in zip(sent_s, values["e2e"], strict=True)) - min(sent_s)
        rate = len(good) / duration if duration > 0 else None
    return [
        Run(
            requests=len(good), failed=failed, duration_s=duration, rate_per_s=rate,
            prompt_tokens=mean(values["prompt"]), output_tokens=mean(values["output"]),
            ttft_s=mean(values["ttft"]), tpot_s=mean(values["tpot"]), e2e_s=mean(values["e2e"]),
            itl_of_requests=bool(values["tpot"]),
        )
    ]  # fmt: skip


def _run(metrics: Mapping[str, Any], document: Mapping[str, Any]) -> Run:
    load = part(document, "input_config", "loadgen") or {}
    found = {key: _average(metrics, names) for key, names in _NAMES.items()}
    named = (metrics.get(name) for name in _NAMES["ttft"])
    tail: Mapping[str, Any] = next((metric for metric in named if isinstance(metric, Mapping)), {})
    return Run(
        requests=count(found["requests"]), failed=count(found["failed"]), duration_s=found["duration"],
        requested_rate_per_s=number(load.get("request_rate")), rate_per_s=found["rate"],
        concurrency_cap=number(load.get("concurrency")), prompt_tokens=found["prompt"],
        output_tokens=found["output"], ttft_s=found["ttft"], tpot_s=found["tpot"], e2e_s=found["e2e"],
        ttft_p99_s=_scaled(tail, "p99"), itl_of_requests=found["tpot"] is not None,
    )  # fmt: skip


def _average(metrics: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        if isinstance(metrics.get(name), Mapping):
            return _scaled(metrics[name], "avg")
    return None


def _scaled(metric: Mapping[str, Any], key: str) -> float | None:
    return number(metric.get(key), _SCALE.get(str(metric.get("unit")), 1.0))


def _value(row: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    metric: Mapping[str, Any] = next((row[name] for name in names if isinstance(row.get(name), Mapping)), {})
    return _scaled(metric, "value")


def _float(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row
