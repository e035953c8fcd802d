"""One configuration on other numbers of replicas: how far the objectives are from breaking, and from holding.

The search stops climbing where a combination meets its objectives, and cuts short what cannot meet them. The one
that is shown in the end deserves both sides: it is simulated to the end on every count up to two beyond its own
(within what was asked for; of more than MAX_POINTS counts, an even choice). Two pools keep their proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from planner.search.combinations import Candidate
from planner.search.crew import Crew
from planner.search.evaluate import Bench, Evaluation, Stopped, judge
from planner.search.ranking import Option
from planner.search.relief import with_replicas
from planner.search.result import ReplicaPoint

MAX_POINTS: Final = 12
_BEYOND: Final = 2


def replica_curve(bench: Bench, crew: Crew, own: Option, most_replicas: int) -> tuple[ReplicaPoint, ...]:
    """Points by rising replica count; empty when the caller wants to stop. `own`: what is known already."""
    others = others_on_curve(own, most_replicas)
    try:
        found = crew.each(others)
    except Stopped:
        return ()
    known = {candidate.replicas: evaluation for candidate, evaluation in zip(others, found, strict=True)}
    if own.evaluation.complete:
        known[own.candidate.replicas] = own.evaluation
    return tuple(_point(bench, count, known[count]) for count in sorted(known))


def others_on_curve(own: Option, most_replicas: int) -> list[Candidate]:
    """What has to be simulated for it."""
    replicas = own.candidate.replicas
    counts = chosen_counts(replicas, min(most_replicas, replicas + _BEYOND))
    return [
        with_replicas(own.candidate, count)
        for count in counts
        if (count > 1 or own.candidate.pools is None) and not (count == replicas and own.evaluation.complete)
    ]


def chosen_counts(own: int, last: int) -> Sequence[int]:
    """1..last, or an even choice of MAX_POINTS of them that has `own` and its neighbours."""
    if last <= MAX_POINTS:
        return range(1, last + 1)
    spread = {1 + round(k * (last - 1) / (MAX_POINTS - 4)) for k in range(MAX_POINTS - 3)}
    return sorted(spread | {n for n in (own - 1, own, own + 1) if 1 <= n <= last})


def _point(bench: Bench, replicas: int, evaluation: Evaluation) -> ReplicaPoint:
    status, reason = judge(evaluation, bench.objectives)
    if evaluation.saturated:
        return ReplicaPoint(replicas, status, reason, {}, {}, evaluation.utilisation)
    wanted = {o.key for o in bench.objectives}
    values_s = {key: value for key, value in evaluation.values_s.items() if key in wanted}
    return ReplicaPoint(replicas, status, reason, values_s, dict(evaluation.split_s), evaluation.utilisation)
