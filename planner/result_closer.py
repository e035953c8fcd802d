"""The closer look of a stored plan as its page reads it: alternatives, sensitivities, policies, in words and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.candidates import STATUS_BADGES
from planner.knob_columns import deployment_text, hardware_names, same_candidate
from planner.objective_columns import column_of, is_joint
from planner.search import label_of_key

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    predicted_s: float | None
    joint: bool
    column: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """A finalist as a row. `holding` of `draws` draws meet everything; 0 draws: it was not asked."""

    role: str
    text: str
    status: str
    badge: str
    gpus: int
    cost: float | None
    objectives: tuple[Cell, ...]
    holding: int
    draws: int


def closer_context(result: Result) -> dict[str, Any]:
    verdict = result["verdict"]
    names = hardware_names(result)
    alternatives = _alternatives(verdict, names)
    return {
        "alternatives": alternatives,
        "priced": any(a.cost is not None for a in alternatives),
        "ties": [deployment_text(tie, names) for tie in verdict.get("ties", ())],
        "breaks": breaks_sentence(result.get("breaking"), verdict["binding"]),
        "sensitivities": [
            {"what": s["what"], "change": s["change"], "fails": s["fails"], "margin": s["worst_margin"],
             "first": said_to_fail(s["fails"])}
            for s in result.get("sensitivities", ())
        ],
        "policies": [p | {"badge": STATUS_BADGES[p["status"]]} for p in result.get("policies", ())],
        "work": work_sentence(result.get("why")),
    }  # fmt: skip


def _alternatives(verdict: Result, names: Sequence[str]) -> list[Alternative]:
    choice, runner_up, other = verdict["choice"], verdict["runner_up"], verdict.get("other")
    named = [("Chosen" if choice else "Closest", choice or verdict["closest"]), ("Runner-up", runner_up)]
    if other and not (runner_up and same_candidate(other, runner_up)):
        apart = other["deployment"] == "disaggregated"
        named.append(("Best of separate pools" if apart else "Best of replicas alike", other))
    there = [_alternative(role, finalist, names) for role, finalist in named if finalist]
    return there if len(there) > 1 else []


def _alternative(role: str, finalist: Result, names: Sequence[str]) -> Alternative:
    return Alternative(
        role=role,
        text=deployment_text(finalist, names),
        status=finalist["status"],
        badge=STATUS_BADGES[finalist["status"]],
        gpus=finalist.get("gpus") or finalist["replicas"],
        cost=finalist.get("cost_per_hour"),
        objectives=tuple(Cell(o["predicted"], is_joint(o), column_of(o)) for o in finalist["objectives"]),
        holding=finalist["holding"],
        draws=finalist["refits"],
    )


def label(key: str) -> str:
    """`ITL p99` for `itl:p99`; `the load` where it saturates."""
    return label_of_key(key) if ":" in key else "sustaining the load"


def said_to_fail(fails: Sequence[str]) -> str:
    """`ITL p99 fails`, `saturated`, or nothing."""
    if not fails:
        return ""
    return fails[0] if fails[0] == "saturated" else f"{label(fails[0])} fails"


def breaks_sentence(breaking: Result | None, tightest: str | None = None) -> str:
    """`It holds up to 1.35 times the traffic's rate; at 1.36 times TTFT p95 fails first.` `tightest`: the one
    nearest to its limit at the load planned for, which need not be the one that more load brings beyond it."""
    if not breaking or not breaking["points"]:
        return ""
    holds, breaks, first = breaking["holds_up_to"], breaking["breaks_at"], breaking["first"]
    if breaks is None:
        return f"Nothing breaks up to {holds:.3g} times the traffic's rate, the most that was tried."
    fails = f"{label(first)} fails first"
    if tightest and first != tightest and holds is not None:
        fails += f", before {label(tightest)}, which is the tightest at the load planned for"
    if holds is None:
        return f"Already at {breaks:.3g} times the traffic's rate {fails}."
    return f"It holds up to {holds:.3g} times the traffic's rate; at {breaks:.3g} times {fails}."


def work_sentence(why: Result | None) -> str:
    """How prefill and decode work compare, per replica."""
    if not why:
        return ""
    pools = {pool["role"]: pool for pool in why["work"]}
    if "prefill" not in pools:
        return ""
    prefill, decode = (pools[role]["seconds_per_replica"] for role in ("prefill", "decode"))
    ratio = f"{prefill / decode:.3g} : 1" if decode else "all prefill"
    return f"Work per replica, prefill pool to decode pool: {ratio} in time; near 1 : 1 neither waits for the other."
