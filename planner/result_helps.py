"""What would help where nothing meets the objectives, as the page offers it: each with the form that asks for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from planner.knob_columns import deployment_text, hardware_names
from planner.models import Plan
from planner.search import Objective, parse_objectives

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Help:
    """`what` in words, on or with `how`; `address` of the form that asks for it; `cost` an hour, where it is known."""

    what: str
    how: str
    address: str
    cost: float | None = None


def helps_of(plan: Plan, result: Result) -> list[Help]:
    """The smallest that were found: more hardware, or wider limits."""
    relief = result.get("relief")
    if not relief or result["verdict"]["choice"]:
        return []
    names, found = hardware_names(result), []
    hardware, limits = relief["hardware"], relief["limits"]
    if hardware:
        count = hardware["replicas"]
        found.append(
            Help(
                f"{count:,} replicas", deployment_text(hardware, names), _address(plan, max_replicas=count),
                _cost(hardware, result),
            )
        )  # fmt: skip
    if limits and relief["relaxed"]:
        asked = parse_objectives(plan.objectives)
        wide = [relaxed(o, limits[o.key]) if o.key in limits else o for o in asked]
        what = " and ".join(o.goal for o, before in zip(wide, asked, strict=True) if o != before)
        address = _address(plan, objective=[o.spec for o in wide])
        found.append(Help(what, deployment_text(relief["relaxed"], names), address))
    return found


def relaxed(objective: Objective, value: float) -> Objective:
    """With the least limit of three digits that `value` (seconds, or a share of the limits of goodput) meets."""
    if not objective.is_joint:
        return replace(objective, limit_s=_up(value))
    return replace(
        objective,
        limits=tuple((metric, _up(round(value * limit_s, 12))) for metric, limit_s in objective.limits),
    )


def _up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit) * unit:.12g}")


def _address(plan: Plan, **changed: Any) -> str:
    return f"{reverse('planner:plan_new')}?{urlencode({'plan': str(plan.pk), **changed}, doseq=True)}"


def _cost(candidate: Result, result: Result) -> float | None:
    """An hour, of replicas on one kind of hardware whose price was given."""
    kinds, kind = result["inputs"].get("hardware") or [], candidate.get("kind", 0)
    if isinstance(kind, Mapping):
        if kind["prefill"] != kind["decode"]:
            return None
        kind = kind["prefill"]
    if kind >= len(kinds) or kinds[kind].get("price_per_gpu_hour") is None:
        return None
    price: float = kinds[kind]["price_per_gpu_hour"] * kinds[kind]["gpus_per_replica"]
    return price * int(candidate["replicas"])
