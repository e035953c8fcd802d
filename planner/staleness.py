"""Does a plan's answer still stand under newer step times? Asked cheaply, and told as a difference.

A plan is not searched anew for that. The configuration that it recommends is simulated under the new step times, and
so are its neighbours in the space: the next smaller and larger value of each knob, on as few replicas as will do.
(Prefill and decode pools have no such neighbours: their whole space is searched again, without intervals.) Three
outcomes:

  same answer              it holds, as cheaply as anything near, and nothing near leaves a margin larger by more
                           than the band that the step-time model cannot tell apart
  answer changed           it holds, but something near costs less or leaves more; or nothing held, and now does
  choice no longer holds   it misses an objective, saturates, or leaves what was measured

Nothing here knows of Django. Seconds, shares of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from planner.knob_columns import (
    budget_of,
    cap_of,
    deployment_text,
    hardware_names,
    hardware_text,
    kinds_of,
    knob_words,
    replicas_text,
    seqs_of,
)
from planner.objective_columns import is_joint, key_of, label_of
from planner.search import PlanResult, SearchSpace

Outcome = Literal["same answer", "answer changed", "choice no longer holds"]
Result = Mapping[str, Any]
#: Searches a space on up to so many replicas, under the new step times.
Search = Callable[[SearchSpace], PlanResult]

STALE: tuple[Outcome, ...] = ("answer changed", "choice no longer holds")


@dataclass(frozen=True, slots=True)
class ObjectiveChange:
    """One objective of the recommended configuration: predicted then, and under the new step times [s]. None: it has
    no latency, because it saturates or leaves what was measured. `joint`: shares of several limits instead."""

    label: str
    limit_s: float
    then_s: float | None
    now_s: float | None
    joint: bool = False


@dataclass(frozen=True, slots=True)
class KnobChange:
    name: str
    then: str
    now: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed of the recommendation. `now` empty: nothing near holds. `objectives`: of the old configuration."""

    outcome: Outcome
    sentence: str
    then: str
    now: str
    objectives: tuple[ObjectiveChange, ...]
    changes: tuple[KnobChange, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def review(result: Result, search: Search) -> Difference:
    """The outcome for a finished plan's stored `result`; `search` asks under the new step times."""
    space = SearchSpace.from_dict(result["inputs"]["space"])
    choice: Result | None = result["verdict"]["choice"]
    if choice is None:
        return _of_infeasible(result, search(_near(result["verdict"]["closest"], space)).to_dict())
    if choice.get("split"):
        near = search(space).to_dict()
        return _judged(result, _pair_in(near, choice), near)
    own = search(_only(choice, space)).to_dict()
    return _judged(result, _own_in(own, choice), search(_near(choice, space)).to_dict())


@dataclass(frozen=True, slots=True)
class _Own:
    """The old configuration under the new step times."""

    status: str
    reason: str
    values_s: Mapping[str, float]


def _only(choice: Result, space: SearchSpace) -> SearchSpace:
    return replace(
        space, budgets_tokens=(budget_of(choice),), chunk_caps_tokens=(cap_of(choice),),
        max_num_seqs=(seqs_of(choice),), max_replicas=choice["replicas"],
    )  # fmt: skip


def _near(choice: Result | None, space: SearchSpace) -> SearchSpace:
    """Each knob's value with the next smaller and larger one; the whole space around nothing."""
    if choice is None or choice.get("split"):
        return space
    return replace(
        space, budgets_tokens=_beside(space.budgets_tokens, budget_of(choice)),
        chunk_caps_tokens=_beside(space.chunk_caps_tokens, cap_of(choice)),
        max_num_seqs=_beside(space.max_num_seqs, seqs_of(choice)),
    )  # fmt: skip


def _beside(values: tuple[int, ...], own: int) -> tuple[int, ...]:
    rising = sorted({*values, own})
    at = rising.index(own)
    return tuple(rising[max(0, at - 1) : at + 2])


def _alike(one: Result, other: Result) -> bool:
    """The same knobs on the same hardware, on however many replicas."""
    return knob_words(one) == knob_words(other) and kinds_of(one) == kinds_of(other)


def _own_in(own: Result, choice: Result) -> _Own:
    """From a search of the configuration alone. An engine that can be told more has several of the same knobs."""
    shown = own["verdict"]["choice"] or own["verdict"]["closest"]
    row = next((c for c in own["candidates"] if _alike(c, choice)), None)
    if shown is not None and _alike(shown, choice):
        point = next((p for p in own["by_replicas"] if p["replicas"] == choice["replicas"]), None)
        if point is not None:
            return _Own(point["status"], point["reason"], point["values_s"])
    if row is None:
        return _Own("invalid", "the engine does not take it", {})
    return _Own(row["status"], row["reason"], _values(row))


def _pair_in(found: Result, choice: Result) -> _Own:
    """From a search of the whole space: the same pair of pools on the same split."""
    for row in found["candidates"]:
        if not row.get("split") or not _alike(row, choice):
            continue
        if row["replicas"] == choice["replicas"] and row["split"] == choice["split"]:
            return _Own(row["status"], row["reason"], _values(row))
        for tried in row["tried"]:
            if (tried["replicas"], tried["prefill_replicas"]) == (
                choice["replicas"],
                choice["split"]["prefill"],
            ):
                return _Own(tried["status"], tried["reason"], {})
    return _Own("not tried", "fewer replicas hold already", {})


def _values(row: Result) -> dict[str, float]:
    return {key_of(o): o["predicted"] for o in row["objectives"] if o["predicted"] is not None}


def _cheaper(one: Result, other: Result) -> bool:
    """By price where there are prices: two kinds of hardware may differ in it; else by GPUs."""
    prices = one.get("cost_per_hour"), other.get("cost_per_hour")
    if prices[0] is not None and prices[1] is not None:
        return bool(round(prices[0], 9) < round(prices[1], 9))
    return bool(one["gpus"] < other["gpus"])


def _judged(result: Result, own: _Own, near: Result) -> Difference:
    choice, best = result["verdict"]["choice"], near["verdict"]["choice"]
    fewer = best is not None and _cheaper(best, choice)
    holds = own.status == "meets" or (own.status == "not tried" and fewer)
    objectives = tuple(
        ObjectiveChange(label_of(o), o["limit"], o["predicted"], own.values_s.get(key_of(o)), is_joint(o))
        for o in choice["objectives"]
    )  # fmt: skip
    names, names_now = hardware_names(result), hardware_names(near)
    then = deployment_text(choice, names)
    now = deployment_text(best, names_now) if best else ""
    changes = _changes(choice, best, names, names_now)
    if not holds:
        instead = f"; {now} would" if now else "; nothing near it does"
        why = f": {own.reason}" if own.reason else ""
        sentence = f"{then} no longer meets the objectives{why}{instead}."
        return Difference("choice no longer holds", sentence, then, now, objectives, changes)
    gain = _gain(choice, own, near)
    if best is None or not (fewer or gain > near["inputs"]["band"]):
        sentence = f"{then} is still the answer under the newer step times."
        return Difference("same answer", sentence, then, then, objectives, ())
    why = "needs less" if fewer else f"leaves {gain:.0%} of a limit more"
    sentence = f"{then} still meets the objectives, but {now} {why}."
    return Difference("answer changed", sentence, then, now, objectives, changes)


def _gain(choice: Result, own: _Own, near: Result) -> float:
    """How much more of its tightest limit the best near it leaves, on as many replicas."""
    limits = {key_of(o): o["limit"] for o in choice["objectives"]}
    margins = [1.0 - value / limits[key] for key, value in own.values_s.items() if key in limits]
    if not margins:
        return 0.0
    widest = max(
        (row["worst_margin"] for row in near["candidates"]
         if row["status"] == "meets" and row["replicas"] == choice["replicas"] and row["worst_margin"] is not None
         and kinds_of(row) == kinds_of(choice)),
        default=min(margins),
    )  # fmt: skip
    return float(widest - min(margins))


def _of_infeasible(result: Result, near: Result) -> Difference:
    best = near["verdict"]["choice"]
    closest = near["verdict"]["closest"]
    now_s = _values(closest or best) if closest or best else {}
    before = result["verdict"]["closest"]
    shown = before["objectives"] if before else []
    objectives = tuple(
        ObjectiveChange(label_of(o), o["limit"], o["predicted"], now_s.get(key_of(o)), is_joint(o))
        for o in shown
    )
    if best is None:
        sentence = "As before, nothing near the closest configuration meets the objectives."
        return Difference("same answer", sentence, "", "", objectives, ())
    now = deployment_text(best, hardware_names(near))
    sentence = f"Nothing met the objectives; under the newer step times {now} does."
    return Difference("answer changed", sentence, "", now, objectives, ())


def _changes(
    then: Result, now: Result | None, names: Sequence[str], names_now: Sequence[str]
) -> tuple[KnobChange, ...]:
    if now is None:
        return ()
    pairs = [
        ("Replicas", replicas_text(then), replicas_text(now)),
        ("Hardware", hardware_text(then, names), hardware_text(now, names_now)),
        ("Token budget [tokens]", f"{budget_of(then):,}", f"{budget_of(now):,}"),
        ("Sequences", f"{seqs_of(then):,}", f"{seqs_of(now):,}"),
        ("Chunk cap [tokens]", f"{cap_of(then):,}" if cap_of(then) else "none",
         f"{cap_of(now):,}" if cap_of(now) else "none"),
    ]  # fmt: skip
    return tuple(KnobChange(*pair) for pair in pairs if pair[1] != pair[2])
