"""One configuration on other numbers of replicas: how far the objectives are from breaking, and from holding.

The search stops climbing where a combination meets its objectives, and cuts short what cannot meet them. The one
that is shown in the end deserves both sides: it is simulated to the end on every count up to two beyond its own
(within what was asked for; of more than MAX_POINTS counts, an even choice).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from planner.search.evaluate import Bench, Evaluation, Stopped, evaluate, judge
from planner.search.ladder import Rung
from planner.search.result import ReplicaPoint
from planner.simulation.knobs import VllmKnobs

MAX_POINTS: Final = 12
_BEYOND: Final = 2


def replica_curve(
    bench: Bench, knobs: VllmKnobs, own: Rung, most_replicas: int, threads: int
) -> tuple[ReplicaPoint, ...]:
    """Points by rising replica count; empty when the caller wants to stop. `own`: what is known already."""

    def at(replicas: int) -> ReplicaPoint:
        known = replicas == own.replicas and own.evaluation.complete
        evaluation = own.evaluation if known else evaluate(bench, knobs, replicas, complete=True)
        return _point(bench, replicas, evaluation)

    counts = chosen_counts(own.replicas, min(most_replicas, own.replicas + _BEYOND))
    try:
        with ThreadPoolExecutor(max(1, threads)) as pool:
            return tuple(pool.map(at, counts))
    except Stopped:
        return ()


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
