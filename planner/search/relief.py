"""Where nothing meets the objectives: the smallest relaxation, or the extra hardware, with which something would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.search.combinations import Candidate
from planner.search.evaluate import Bench, evaluate_candidate, judge
from planner.search.objectives import Objective
from planner.search.ranking import Option
from planner.search.space import MAX_REPLICAS


@dataclass(frozen=True, slots=True)
class Relief:
    """limits_s: by `Objective.key`, the limits that the closest candidate would meet (only those that must grow);
    replicas: the least found on which `hardware` meets the objectives as asked. None: not found, or not sought."""

    limits_s: Mapping[str, float] | None
    relaxed: Candidate | None
    replicas: int | None
    hardware: Candidate | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "limits": dict(self.limits_s) if self.limits_s is not None else None,
            "relaxed": self.relaxed.to_dict() if self.relaxed else None,
            "replicas": self.replicas,
            "hardware": self.hardware.to_dict() if self.hardware else None,
        }


def relief(bench: Bench, tried: Sequence[Option], closest: Option | None, *, impossible: bool) -> Relief:
    """Raises Stopped when the caller wants to stop. `impossible`: no hardware would do, so none is sought."""
    option = _least_excess(tried, bench.objectives)
    limits = None
    if option is not None:
        values = option.evaluation.values_s
        limits = {o.key: values[o.key] for o in bench.objectives if values.get(o.key, 0.0) > o.limit_s}
    hardware = None
    if not impossible and closest is not None and closest.status != "not covered":
        hardware = _more_hardware(bench, closest.candidate)
    return Relief(
        limits, option.candidate if option else None, hardware.replicas if hardware else None, hardware
    )


def _least_excess(tried: Sequence[Option], objectives: Sequence[Objective]) -> Option | None:
    """Of all that ran to the end without saturation: the one whose worst excess is least."""
    whole = [
        option
        for option in tried
        if option.evaluation.complete and option.status == "fails" and not option.evaluation.refused
    ]
    return max(whole, key=lambda option: option.margin(objectives), default=None)


def _more_hardware(bench: Bench, candidate: Candidate) -> Candidate | None:
    """Double the extra replicas until the objectives hold, then close in on the least that does. A request has no use
    for a second replica, so what fails on as many replicas as there are requests fails on any number."""
    last = min(MAX_REPLICAS, bench.requests.count)

    def meets(replicas: int) -> bool:
        evaluation = evaluate_candidate(bench, with_replicas(candidate, replicas))
        return judge(evaluation, bench.objectives)[0] == "meets"

    fails, extra = candidate.replicas, 1
    while True:
        at = min(candidate.replicas + extra, last)
        if at <= fails:
            return None
        if meets(at):
            break
        fails, extra = at, 2 * extra
    while at - fails > 1:
        middle = (fails + at) // 2
        if meets(middle):
            at = middle
        else:
            fails = middle
    return with_replicas(candidate, at)


def with_replicas(candidate: Candidate, replicas: int) -> Candidate:
    """Two pools keep their proportion, as nearly as whole replicas can."""
    if candidate.pools is None:
        return replace(candidate, replicas=replicas)
    prefill = round(candidate.prefill_replicas * replicas / candidate.replicas)
    return replace(candidate, replicas=replicas, prefill_replicas=min(max(1, prefill), replicas - 1))
