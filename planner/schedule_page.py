"""A stored schedule in words and rows, for a plan's page, its figure and the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One period, or several in a row that need the same."""

    when: str
    requests: int
    rate_low: float
    rate_high: float
    need: str
    worst_day: str
    claimed: bool
    reason: str


def clock(period: Result, hours: bool) -> str:
    """`09:00 to 10:00`, or `1 h 30 min to 2 h` of the traffic."""
    start, end = period["start_s"], period["end_s"]
    if hours:
        return f"{_hour(start)} to {_hour(end)}"
    return f"{start / 60:,.4g} to {end / 60:,.4g} min"


def _hour(seconds: float) -> str:
    return f"{int(seconds // 3600):02d}:00"


def need_text(need: Result) -> str:
    """`3`, `2 : 1` of two pools, or that none holds."""
    if need["replicas"] is None:
        return "none holds"
    prefill = need["prefill_replicas"]
    return f"{prefill:,} : {need['replicas'] - prefill:,}" if prefill else f"{need['replicas']:,}"


def schedule_rows(schedule: Result) -> list[Row]:
    """Neighbouring periods with the same need and outcome are one row."""
    hours = schedule["periods"]["by"] == "hours"
    groups: list[list[Result]] = []
    for each in schedule["needs"]:
        last = groups[-1][-1] if groups else None
        alike = last is not None and last["end_s"] == each["start_s"] and _alike(last["need"], each["need"])
        if alike:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [_row(group, hours) for group in groups]


def _alike(one: Result, other: Result) -> bool:
    return all(one[key] == other[key] for key in ("replicas", "prefill_replicas", "status", "claimed"))


def _row(group: list[Result], hours: bool) -> Row:
    rates = [each["rate_per_s"] for each in group]
    days = sorted({each["worst"] + 1 for each in group if len(each["days"]) > 1})
    need = group[0]["need"]
    return Row(
        clock({"start_s": group[0]["start_s"], "end_s": group[-1]["end_s"]}, hours),
        sum(each["requests"] for each in group), min(rates), max(rates), need_text(need),
        ", ".join(map(str, days)), all(each["need"]["claimed"] for each in group),
        "" if need["status"] == "meets" else need["reason"],
    )  # fmt: skip


def schedule_sentence(schedule: Result) -> str:
    """`A schedule takes 41.5 replica-hours a day, 42 % less than 3 replicas all day.`"""
    saved, constant = schedule["saved_share"], schedule["constant_replicas"]
    if saved is None:
        failing = sum(each["need"]["replicas"] is None for each in schedule["needs"])
        return (
            f"In {failing} of {len(schedule['needs'])} periods nothing up to {schedule['most_replicas']:,} replicas "
            "holds the objectives by itself, so there is no schedule to compare."
        )
    span = "over the day" if schedule["periods"]["by"] == "hours" else "over the traffic"
    said = (
        f"{schedule['replica_hours']:,.3g} replica-hours {span}, {100 * saved:.3g} % less than {constant:,} "
        f"replica{'' if constant == 1 else 's'} throughout ({schedule['constant_replica_hours']:,.3g})"
    )
    if schedule["cost"] is not None:
        said += f": {schedule['cost']:,.2f} instead of {schedule['constant_cost']:,.2f}"
    planned = schedule["planned_replicas"]
    if constant > planned:
        said += (
            f". The plan's {planned:,} hold over the whole traffic; the busiest period by itself needs {constant:,}, "
            "because its percentiles are not diluted by quiet hours"
        )
    return f"{said}."


def schedule_context(result: Result) -> dict[str, Any]:
    schedule = result.get("schedule")
    if not schedule:
        return {}
    return {
        "schedule": schedule,
        "schedule_rows": schedule_rows(schedule),
        "schedule_sentence": schedule_sentence(schedule),
    }
