"""LMBench: a CSV with one request a row, seconds; generation_time runs from the first token to the last."""

from __future__ import annotations

import csv

from planner.traffic.benchmarks.run import Run, mean, number

_NEEDED = ("prompt_tokens", "generation_tokens", "ttft", "generation_time")


def rows(text: str) -> list[Run]:
    good: list[dict[str, float]] = []
    failed = 0
    for row in csv.DictReader(text.splitlines()):
        values = {key: _float(row.get(key)) for key in (*_NEEDED, "launch_time", "finish_time")}
        if any(values[key] is None for key in _NEEDED):
            failed += 1
        else:
            good.append({key: value for key, value in values.items() if value is not None})
    clocked = [row for row in good if "launch_time" in row and "finish_time" in row]
    e2e_s = mean([row["finish_time"] - row["launch_time"] for row in clocked])
    inside_s = mean([row["ttft"] + row["generation_time"] for row in good])
    remarks, duration_s = [], None
    if clocked:
        duration_s = max(row["finish_time"] for row in clocked) - min(row["launch_time"] for row in clocked)
    if e2e_s and inside_s and abs(e2e_s / inside_s - 1) > 0.05:
        remarks.append(
            f"finish_time - launch_time is {e2e_s:.4g} s on average, ttft + generation_time {inside_s:.4g} s: the "
            "client spent the difference outside of the request."
        )
    return [
        Run(
            requests=len(good), failed=failed, duration_s=duration_s,
            rate_per_s=len(clocked) / duration_s if duration_s else None,
            concurrency=_in_flight(clocked, duration_s), prompt_tokens=mean([row["prompt_tokens"] for row in good]),
            output_tokens=mean([row["generation_tokens"] for row in good]),
            ttft_s=mean([row["ttft"] for row in good]), e2e_s=e2e_s if e2e_s is not None else inside_s,
            tpot_s=_tpot(good), remarks=tuple(remarks),
        )
    ]  # fmt: skip


def _tpot(good: list[dict[str, float]]) -> float | None:
    """Time between first and last token / all gaps: generation_time is stated, so this is the file's TPOT."""
    gaps = sum(max(0.0, row["generation_tokens"] - 1) for row in good)
    return sum(row["generation_time"] for row in good) / gaps if gaps else None


def _in_flight(clocked: list[dict[str, float]], duration_s: float | None) -> float | None:
    """The time-average of requests between launch and finish, counted event by event."""
    if not duration_s:
        return None
    events = sorted(
        [(row["launch_time"], 1) for row in clocked] + [(row["finish_time"], -1) for row in clocked]
    )
    area, running, last = 0.0, 0, events[0][0]
    for time_s, change in events:
        area += running * (time_s - last)
        running, last = running + change, time_s
    return area / duration_s


def _float(cell: str | None) -> float | None:
    try:
        return number(float(cell or ""))
    except ValueError:
        return None
