"""A finished plan as lines for people: the verdict, what stands behind it, what qualifies it, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from planner.models import Plan
from planner.objective_columns import is_joint, label_of, limits_text, text_of
from planner.schedule_page import schedule_rows, schedule_sentence
from planner.search.seconds import seconds_text
from planner.verifications import why_not

#: Lines of objectives and remarks, together; a schedule's rows come on top.
MOST: Final = 14


def lines_of(plan: Plan) -> Iterator[str]:
    """At most MOST and six, and those of a schedule."""
    result = plan.result or {}
    summary = result["summary"]
    yield plan.sentence
    if schedule := result.get("schedule"):
        yield schedule_sentence(schedule)
        for row in schedule_rows(schedule):
            yield f"  {row.when}: {row.need}{f' ({row.reason})' if row.reason else ''}"
    objectives = summary["objectives"]
    shown = objectives[: MOST // 2]
    yield from map(_objective, shown)
    if more := len(objectives) - len(shown):
        yield f"  and {more} more objectives: --json"
    kept = MOST - len(shown)
    for remark in summary["remarks"][:kept]:
        yield f"note: {remark}"
    if (more := len(summary["remarks"]) - kept) > 0:
        yield f"note: {more} more: --json"
    yield from _flags(summary)
    yield f"plan {plan.pk}"
    yield from _how_to_go_on(plan, summary)


def _objective(o: Mapping[str, Any]) -> str:
    goal = limits_text(o) if is_joint(o) else f"at most {_value(o, o['limit'])}"
    if o["predicted"] is None:
        return f"  {label_of(o)}, {goal}: no value"
    interval = ""
    if o.get("low") is not None:
        end = "without an upper end" if o["high"] is None else f"to {_value(o, o['high'])}"
        interval = f" (90 % interval {_value(o, o['low'])} {end})"
    sure = "" if o.get("probability") is None else f", holds with probability {o['probability']:.3g}"
    return f"  {label_of(o)}, {goal}: {_value(o, o['predicted'])}{interval}{sure}"


def _value(o: Mapping[str, Any], value: float) -> str:
    return text_of(o, value) if is_joint(o) else seconds_text(value)


def _flags(summary: Mapping[str, Any]) -> Iterator[str]:
    """Of TensorRT-LLM they are lines of a file."""
    flags = summary["flags"]
    by_pool = flags if isinstance(flags, dict) else {"": flags}
    for pool, given in by_pool.items():
        if given:
            text = "; ".join(given) if summary["engine"] == "tensorrt_llm" else shlex.join(given)
            yield f"flags{f' of the {pool} pool' if pool else ''}: {text}"


def _how_to_go_on(plan: Plan, summary: Mapping[str, Any]) -> Iterator[str]:
    if not summary["feasible"]:
        return
    if reason := why_not(plan):
        yield f"It cannot be replayed on a device here: {reason} Its page can send it to a running server."
    else:
        yield f"Is it true? manage.py verify {plan.pk}"
