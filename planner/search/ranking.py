"""Which of the configurations that meet the objectives is recommended, or which comes closest.

Fewer replicas first: they are the cost. Then the larger worst margin (share of a limit that is left). Margins
closer than the error band of the step-time model are a tie, because the model cannot tell them apart, and the
simpler configuration wins it: the one that changes fewest of vLLM's defaults, and changes them least. What is
still equal is decided by the order of the space, so that the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.search.ladder import Climb, Climbed, Rung
from planner.search.objectives import Objective
from planner.search.space import Status, distance_from_defaults

#: From what is nearest to being an answer to what is furthest from it.
_CLOSENESS: tuple[Status, ...] = ("fails", "not covered", "saturated")


def choose(climbed: Climbed, objectives: Sequence[Objective], band: float) -> list[Climb]:
    """The recommended combination and the runner-up (which behaves differently), if there are such."""
    met = [climb for climb in climbed.climbs if climb.met]
    chosen: list[Climb] = []
    while met and len(chosen) < 2:
        best = _best([(climb, climb.met) for climb in met if climb.met], objectives, band)
        chosen.append(best)
        met = [c for c in met if c.met and best.met and c.met.evaluation != best.met.evaluation]
    return chosen


def tied_with(choice: Climb, climbed: Climbed, objectives: Sequence[Objective], band: float) -> int:
    """How many other combinations at the same replica count the model cannot tell from the choice."""
    own = choice.met
    if own is None:
        return 0
    margin = own.evaluation.worst_margin(objectives)
    others = [c.met for c in climbed.climbs if c is not choice and c.met and c.met.replicas == own.replicas]
    return sum(abs(rung.evaluation.worst_margin(objectives) - margin) <= band for rung in others)


def closest(climbed: Climbed, objectives: Sequence[Objective], band: float) -> Climb | None:
    """Where nothing meets the objectives: the combination that misses them least on the most replicas."""
    for status in _CLOSENESS:
        rungs = [(climb, climb.last) for climb in climbed.climbs if climb.last]
        here = [(climb, rung) for climb, rung in rungs if rung.status == status]
        if here:
            most = max(rung.replicas for _, rung in here)
            return _best([(c, rung) for c, rung in here if rung.replicas == most], objectives, band)
    return None


def _best(rungs: Sequence[tuple[Climb, Rung]], objectives: Sequence[Objective], band: float) -> Climb:
    fewest = min(rung.replicas for _, rung in rungs)
    level = [(c, rung.evaluation.worst_margin(objectives)) for c, rung in rungs if rung.replicas == fewest]
    widest = max(margin for _, margin in level)
    tied = [climb for climb, margin in level if margin >= widest - band]
    return min(tied, key=lambda climb: distance_from_defaults(climb.combination.knobs))
