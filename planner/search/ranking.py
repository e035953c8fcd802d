"""Which of the configurations that meet the objectives is recommended, or which comes closest.

The least cost first: of one kind of hardware, the fewest replicas. Then the larger worst margin (share of a limit that
is left). Margins closer than the error band of the step-time model are a tie, because the model cannot tell them
apart. One that the engine's rules do not warn of wins it over one that they do, and else the simpler configuration:
replicas alike before two pools, requests dealt in turn before other
routers, pools on one kind of hardware before others, then the one that changes fewest of the engine's defaults, and
changes them least. What is still equal is decided by the order of the space, so that the same question has the same
answer. Two pools must be needed as well: where replicas alike that cost as much hold in as many of the draws, these
are the answer, however much wider the pools' margin (`answer.py`, once the draws are known).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.search.combinations import Candidate, Status
from planner.search.engines import distance_from_defaults
from planner.search.evaluate import Evaluation
from planner.search.fleet import cost_of
from planner.search.ladder import Climb, Climbed, Rung
from planner.search.objectives import Objective
from planner.search.splits import Attempt, Splits
from planner.simulation.cluster.deployment import ROUND_ROBIN

#: From what is nearest to being an answer to what is furthest from it.
_CLOSENESS: tuple[Status, ...] = ("fails", "not covered", "saturated")


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate that was tried, whatever its deployment."""

    candidate: Candidate
    evaluation: Evaluation
    status: Status
    reason: str
    warnings: tuple[str, ...] = ()
    per_replica: tuple[float, ...] = (1.0, 1.0)  # as `Fleet.per_replica`

    @classmethod
    def of_rung(cls, climb: Climb, rung: Rung, per_replica: tuple[float, ...] = (1.0, 1.0)) -> Option:
        own = climb.combination
        candidate = Candidate(own.knobs, rung.replicas, kind=own.kind, router=own.router)
        return cls(candidate, rung.evaluation, rung.status, rung.reason, own.warnings, per_replica)

    @classmethod
    def of_attempt(cls, attempt: Attempt, per_replica: tuple[float, ...] = (1.0, 1.0)) -> Option:
        evaluation, status, reason = attempt.evaluation, attempt.status, attempt.reason
        pools = attempt.candidate.pools
        warned = pools.warnings if pools else ()
        return cls(attempt.candidate, evaluation, status, reason, warned, per_replica)

    @property
    def cost(self) -> float:
        return cost_of(self.candidate, self.per_replica)

    def margin(self, objectives: Sequence[Objective]) -> float:
        return self.evaluation.worst_margin(objectives)


def options(
    climbed: Climbed, splits: Splits | None = None, per_replica: tuple[float, ...] = (1.0, 1.0)
) -> list[Option]:
    """Everything that was tried, replicas alike first, each in its own order."""
    found = [Option.of_rung(climb, rung, per_replica) for climb in climbed.climbs for rung in climb.rungs]
    return found + [
        Option.of_attempt(attempt, per_replica) for attempt in (splits.attempts if splits else ())
    ]


def choose(tried: Sequence[Option], objectives: Sequence[Objective], band: float) -> list[Option]:
    """The recommended option and the runner-up (which behaves differently), if there are such."""
    met = [option for option in tried if option.status == "meets"]
    chosen: list[Option] = []
    while met and len(chosen) < 2:
        best = best_of(met, objectives, band)
        chosen.append(best)
        met = [option for option in met if option.evaluation != best.evaluation]
    return chosen


def tied_with(
    choice: Option, tried: Sequence[Option], objectives: Sequence[Objective], band: float
) -> list[Option]:
    """Others of the same cost that the model cannot tell from the choice."""
    margin = choice.margin(objectives)
    return [
        option
        for option in tried
        if option.status == "meets"
        and option.candidate != choice.candidate
        and option.cost == choice.cost
        and abs(option.margin(objectives) - margin) <= band
    ]


def closest(tried: Sequence[Option], objectives: Sequence[Objective], band: float) -> Option | None:
    """Where nothing meets the objectives: what misses them least on the most replicas."""
    whole = [option for option in tried if option.evaluation.complete] or list(tried)
    for status in _CLOSENESS:
        here = [option for option in whole if option.status == status]
        if here:
            return widest_of([o for o in here if o.candidate.replicas == _most(o, here)], objectives, band)
    return None


def _most(own: Option, among: Sequence[Option]) -> int:
    """Replicas of the largest deployment on the same kinds of hardware."""
    kinds = set(own.candidate.kinds)
    return max(o.candidate.replicas for o in among if set(o.candidate.kinds) == kinds)


def best_of(among: Sequence[Option], objectives: Sequence[Objective], band: float) -> Option:
    """Of the cheapest, the one with the widest margin, or what is simpler and cannot be told from it."""
    least = min(option.cost for option in among)
    return widest_of([option for option in among if option.cost == least], objectives, band)


def widest_of(among: Sequence[Option], objectives: Sequence[Objective], band: float) -> Option:
    level = [(o, o.margin(objectives)) for o in among]
    widest = max(margin for _, margin in level)
    return min((option for option, margin in level if margin >= widest - band), key=simplicity)


def simplicity(option: Option) -> tuple[object, ...]:
    """Smaller wins a tie: without a warning, then simpler."""
    pools, kinds = option.candidate.pools, option.candidate.kinds
    changed, octaves = distance_from_defaults(option.candidate.knobs)
    looks = option.candidate.routed != ROUND_ROBIN
    warned = bool(option.warnings)
    if pools is None:
        return warned, False, looks, 0, 0, 0, changed, octaves, kinds
    also, more = distance_from_defaults(pools.prefill)
    mixed = len(set(kinds)) - 1
    local = pools.local_prefill_tokens > 0
    return (
        warned,
        True,
        looks,
        mixed,
        local,
        pools.transfer_chunk_tokens,
        changed + also,
        octaves + more,
        kinds,
    )
