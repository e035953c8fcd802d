"""A plan's question put into the form again, to be asked with something changed: what differs from the defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from planner.models import Plan
from planner.plan_forms import PlanForm, wider
from planner.result_page import question_of
from planner.search import (
    DEFAULT_MAX_REPLICAS,
    GOODPUT,
    Engine,
    Objective,
    ObjectiveError,
    default_space_of,
    parse_objectives,
)

#: What the answer of the form does not depend on, with what it holds unless somebody chose.
DEFAULTS: dict[str, Any] = {"seed": 0, "scheduling": "async"}
SPACE = ("budgets_tokens", "chunk_caps_tokens", "max_num_seqs")


def initial_of(plan: Plan, objectives: Sequence[str] = ()) -> dict[str, Any]:
    """What the fields hold at first. `objectives`: instead of the plan's own; where they are none, they stand as they
    were said, for the form to refuse."""
    asked = question_of(plan)
    del asked["name"], asked["objectives"]
    if "link_gb_per_s" in asked:
        asked["link"] = "entered"
    for name, values in _default_space(plan, asked).items():
        if asked.get(name) == values:
            del asked[name]
    asked = {name: value for name, value in asked.items() if value != DEFAULTS.get(name)}
    texts = {name: ", ".join(map(str, value)) for name, value in asked.items() if isinstance(value, list)}
    return {**asked, **texts, **_objectives(list(objectives or plan.objectives))}


def _objectives(said: list[str]) -> dict[str, Any]:
    try:
        return fields_of(parse_objectives(said))
    except ObjectiveError:
        return {"objectives": "\n".join(said)}


def _default_space(plan: Plan, asked: dict[str, Any]) -> dict[str, list[int]]:
    """What the form would take of itself; nothing where the calibration has no model any more."""
    calibrations = [one for one in (plan.calibration, plan.second_calibration) if one is not None]
    if not all(one.result for one in calibrations):
        return {}
    most, engine = asked.get("max_replicas", DEFAULT_MAX_REPLICAS), cast(Engine, asked.get("engine", "vllm"))
    spaces = [default_space_of((one.result or {})["model"], most, engine) for one in calibrations]
    space = spaces[0] if len(spaces) == 1 else wider(*spaces)
    return {name: list(getattr(space, name)) for name in SPACE}


def fields_of(objectives: Sequence[Objective]) -> dict[str, Any]:
    """The rows of the page, and as lines what has no row: classes, other percentiles, a second one of a metric."""
    found: dict[str, Any] = {}
    lines = []
    for o in objectives:
        percentile = f"{o.percentile:g}"
        choices = dict(PlanForm.SHARES if o.is_joint else PlanForm.PERCENTILES)
        row = f"{o.metric}_percentile"
        if o.request_class is not None or percentile not in choices or row in found:
            lines.append(o.spec)
            continue
        found[row] = percentile
        if o.is_joint:
            found |= {f"{GOODPUT}_{metric}_ms": _ms(limit_s) for metric, limit_s in o.limits}
        else:
            found[f"{o.metric}_limit_ms"] = _ms(o.limit_s)
    return found | ({"objectives": "\n".join(lines)} if lines else {})


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.10g}"
