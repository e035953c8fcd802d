"""A what-if answered inside the web server: whose turn it is, the machine code, the simulation, and what is saved of
it when somebody asks for that. Until then nothing is written anywhere."""

from __future__ import annotations

from typing import Any

from planner.models import Plan
from planner.result_page import question_of
from planner.search.evaluate import Stopped
from planner.search.neighbours import Neighbour, neighbours
from planner.search.what_if import Setting, WhatIf, ask, candidate_at
from planner.what_if_subject import LOADING_WAIT_S, Opened, load
from planner.what_if_turns import Overtaken, turn

NO_INTERVAL = "No interval here: a full plan gives it."


def answer(there: Opened, setting: Setting, user: Any) -> WhatIf:
    """Raises Overtaken or Busy (what_if_turns)."""
    load(there.subject, candidate_at(there.subject, setting)[0], wait_s=LOADING_WAIT_S)
    with turn(str(user.pk)) as overtaken:
        try:
            return ask(there.subject, setting, overtaken)
        except Stopped:
            raise Overtaken from None


def around(there: Opened, setting: Setting, user: Any) -> list[tuple[Neighbour, WhatIf]]:
    """One step of each knob each way. Raises Overtaken or Busy."""
    load(there.subject, candidate_at(there.subject, setting)[0], wait_s=LOADING_WAIT_S)
    with turn(str(user.pk)) as overtaken:
        found = []
        for each in neighbours(there.subject, setting):
            if overtaken():
                raise Overtaken
            try:
                found.append((each, ask(there.subject, each.setting, overtaken)))
            except Stopped:
                raise Overtaken from None
        return found


def as_question(plan: Plan, there: Opened, setting: Setting) -> dict[str, Any]:
    """The plan's question with this setting's limits, rate and link, and a space that has its knobs: what PlanForm
    takes. A link at another speed than the plan's counts as entered, with the plan's latency and uncertainty."""
    start, space, question = there.subject.start, there.subject.space, question_of(plan)
    question |= {
        "name": f"What if: {plan.name}"[:120],
        "objectives": [o.spec for o in setting.objectives],
        "rate_multiplier": setting.rate_multiplier,
        "max_replicas": max(
            space.max_replicas, setting.replicas, 2 if setting.link_gb_per_s is not None else 1
        ),
        "budgets_tokens": sorted({*space.budgets_tokens, setting.budget_tokens}),
        "chunk_caps_tokens": sorted({*space.chunk_caps_tokens, setting.chunk_cap_tokens}),
        "max_num_seqs": sorted({*space.max_num_seqs, setting.max_num_seqs}),
    }
    if setting.link_gb_per_s != start.link_gb_per_s and setting.link_gb_per_s is not None:
        known = there.subject.conditions.link
        question |= {"link": "entered", "link_gb_per_s": setting.link_gb_per_s}
        if known is not None:
            question |= {
                "link_latency_s": known.table.latency_s[0],
                "link_uncertainty": known.table.uncertainty,
            }
    return question
