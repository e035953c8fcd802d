"""The search: every knob combination climbs from one replica until it meets all objectives.

Replicas are tried one by one, because with real arrivals a percentile need not fall with every added replica and
bisection would then miss the least number. All combinations stand on the same rung at a time, so the first
rung on which one meets the objectives is the answer's replica count, known before the rest is finished; on that
rung every combination is simulated to its end, because the trade plot shows them all.

Two things are not simulated twice. A run cut short once its objectives are out of reach (see `evaluate`). And a
smaller max_num_seqs that a run with a larger one never touched: where the running requests never exceeded it,
every decision of the scheduler is the same, so the outcome is too.
A group of combinations is one part of the work (`crew`), on several rungs where they take little time, because between
two batches of parts everybody waits for the last one; results do not depend on who does it, nor on how many rungs at
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Final

from planner.search.combinations import Combination, Status
from planner.search.crew import Crew, Evaluated
from planner.search.engines import budget_of, cap_of, seqs_of, variant_of
from planner.search.evaluate import Bench, Evaluation, evaluate, judge
from planner.simulation.cluster.deployment import ROUND_ROBIN
from planner.simulation.knobs import Knobs

OnProgress = Callable[[int, int, str], None]

#: What is tried at once takes about so long where it can, or less: what is known is told in between.
QUICK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Rung:
    """What one combination did on `replicas` replicas."""

    replicas: int
    evaluation: Evaluation
    status: Status
    reason: str


@dataclass(slots=True)
class Climb:
    """A combination (`position` in its list) and its rungs so far, lowest first."""

    combination: Combination
    position: int = 0
    rungs: list[Rung] = field(default_factory=list)

    @property
    def last(self) -> Rung | None:
        return self.rungs[-1] if self.rungs else None

    @property
    def met(self) -> Rung | None:
        """The rung on which it met the objectives: always its last."""
        return self.last if self.last and self.last.status == "meets" else None

    def stand(self, rung: Rung) -> None:
        """On a new rung, or again on an old one."""
        at = next((i for i, old in enumerate(self.rungs) if old.replicas == rung.replicas), len(self.rungs))
        self.rungs[at : at + 1] = [rung]

    def at(self, replicas: int) -> Rung | None:
        return next((rung for rung in self.rungs if rung.replicas == replicas), None)


@dataclass(frozen=True, slots=True)
class Climbed:
    """All combinations that were tried. `replicas`: the least that met (the most tried if none did); of two kinds of
    hardware, of the cheaper one."""

    climbs: tuple[Climb, ...]
    replicas: int
    feasible: bool
    stopped: bool

    def least_cost(self, bench: Bench) -> float | None:
        """Of replicas alike that meet the objectives; None where none do."""
        per_replica = bench.fleet.per_replica
        met = [
            rung.replicas * per_replica[climb.combination.kind]
            for climb in self.climbs
            if (rung := climb.met) is not None
        ]
        return min(met, default=None)


def climb_all(
    bench: Bench,
    crew: Crew,
    max_replicas: int,
    *,
    on_progress: OnProgress,
    on_rung: Callable[[Climbed], None] = lambda climbed: None,
) -> Climbed:
    """Search the crew's combinations up to `max_replicas`, one kind of hardware after the other; `on_rung` is told what
    is known after each number.

    Stops early, with what is known, when `bench.should_stop()` says so.
    """
    climbs = tuple(
        Climb(combination, position)
        for position, combination in enumerate(crew.combinations)
        if combination.status == "not tried"
    )
    most = {kind: min(max_replicas, bench.fleet.most[kind]) for kind in bench.fleet.kinds}
    progress = _Progress(sum(most[climb.combination.kind] for climb in climbs), max_replicas, on_progress)
    by_kind: dict[int, Climbed] = {}
    for kind in bench.fleet.kinds:
        own = [climb for climb in climbs if climb.combination.kind == kind]
        progress.max_replicas = most[kind]

        def tell(of_kind: Climbed, kind: int = kind) -> None:
            on_rung(_joined(bench, climbs, {**by_kind, kind: of_kind}))

        by_kind[kind] = _climb_kind(bench, crew, own, progress, tell)
        if by_kind[kind].stopped:
            break
    return _joined(bench, climbs, by_kind)


def _joined(bench: Bench, climbs: tuple[Climb, ...], by_kind: Mapping[int, Climbed]) -> Climbed:
    """All climbs; the replicas of the cheapest answer."""
    stopped = any(climbed.stopped for climbed in by_kind.values())
    met = [(bench.fleet.per_replica[k] * c.replicas, c.replicas) for k, c in by_kind.items() if c.feasible]
    if met:
        return Climbed(climbs, min(met)[1], feasible=True, stopped=stopped)
    return Climbed(climbs, max(c.replicas for c in by_kind.values()), feasible=False, stopped=stopped)


def _climb_kind(
    bench: Bench,
    crew: Crew,
    climbs: Sequence[Climb],
    progress: _Progress,
    on_rung: Callable[[Climbed], None],
) -> Climbed:
    """Of one kind of hardware, on up to `progress.max_replicas` replicas."""
    most = progress.max_replicas
    found = first = 0
    stopped = False
    progress.met = 0
    untold: Callable[[], None] = _nothing  # told while the next numbers are being tried
    at_once = 1
    while first < most and not stopped:
        open_climbs = [climb for climb in climbs if climb.met is None]
        if not open_climbs:
            break
        rungs = range(first + 1, min(most, first + at_once) + 1)
        began_s = time.monotonic()
        stopped = _climb(bench, open_climbs, rungs, most, crew, progress, untold)
        at_once = max(1, 2 * at_once if time.monotonic() - began_s < QUICK_S else at_once // 2)
        first, untold = rungs[-1], _nothing
        if not found:
            found = min((climb.met.replicas for climb in climbs if climb.met), default=0)
            untold = partial(on_rung, Climbed(tuple(climbs), found or first, bool(found), stopped))
            short = [c for c in open_climbs if (rung := c.at(found)) and not rung.evaluation.complete]
            if short and not stopped:
                stopped = _climb(bench, short, [found], found, crew, None, untold)
                untold = _nothing
    untold()
    tried = max((climb.last.replicas for climb in climbs if climb.last), default=most)
    return Climbed(tuple(climbs), found or tried, bool(found), stopped)


@dataclass(slots=True)
class _Progress:
    """Counts (combination, replicas) pairs that need no more work."""

    total: int
    max_replicas: int
    report: OnProgress
    done: int = 0
    met: int = 0

    def add(self, climbs: Sequence[Climb], replicas: int) -> None:
        met = sum(climb.met is not None for climb in climbs)
        self.met += met
        self.done += len(climbs) + met * (self.max_replicas - replicas)
        where = f"{replicas} replica{'s' if replicas > 1 else ''}"
        self.report(
            self.done, self.total, f"Trying {where}: {self.met} combinations meet the objectives so far"
        )


def _climb(
    bench: Bench,
    climbs: Sequence[Climb],
    rungs: Sequence[int],
    whole_at: int,
    crew: Crew,
    progress: _Progress | None,
    begun: Callable[[], None],
) -> bool:
    """Evaluate `climbs` on each number of replicas, those of equal budget and cap together; True if stopped. `begun` is
    called when others may be at work already."""
    groups = [
        sorted(members, key=lambda climb: -seqs_of(climb.combination.knobs))
        for _, members in groupby(climbs, key=_group)
    ]
    places = [[climb.position for climb in group] for group in groups]
    stopped = False
    answered = crew.climb(places, rungs, whole_at=whole_at)
    begun()
    for group, answers in zip(groups, answered, strict=True):
        if answers is None:
            stopped = True
            continue
        left, open_ = iter(answers), group
        for replicas in rungs:
            for climb in open_:
                evaluation = next(left).evaluation
                climb.stand(Rung(replicas, evaluation, *judge(evaluation, bench.objectives)))
            if progress:
                progress.add(open_, replicas)
            open_ = [climb for climb in open_ if climb.met is None]
    return stopped


def _nothing() -> None:
    pass


def _group(climb: Climb) -> object:
    """All but the sequences."""
    knobs = climb.combination.knobs
    own = climb.combination
    return own.kind, own.router, budget_of(knobs), cap_of(knobs), variant_of(knobs)


def climb_group(
    bench: Bench, group: Sequence[Combination], rungs: Sequence[int], *, whole_at: int
) -> list[Evaluated]:
    """On each number of replicas those in the group, in its order, that have not met the objectives before."""
    found: list[Evaluated] = []
    for replicas in rungs:
        knobs = [combination.knobs for combination in group]
        if not knobs:
            break
        evaluations = evaluate_group(
            bench, knobs, replicas, complete=replicas == whole_at, router=group[0].router
        )
        found += [Evaluated(evaluation) for evaluation in evaluations]
        group = [
            combination
            for combination, evaluation in zip(group, evaluations, strict=True)
            if judge(evaluation, bench.objectives)[0] != "meets"
        ]
    return found


def evaluate_group(
    bench: Bench, group: Sequence[Knobs], replicas: int, *, complete: bool, router: str = ROUND_ROBIN
) -> list[Evaluation]:
    """Evaluations in the group's order: max_num_seqs falls, so the run before may stand for the next one."""
    evaluations: list[Evaluation] = []
    for knobs in group:
        if evaluations and evaluations[-1].peak_running <= seqs_of(knobs):
            evaluations.append(_with_seats(evaluations[-1], seqs_of(knobs)))
        else:
            evaluations.append(evaluate(bench, knobs, replicas, complete=complete, router=router))
    return evaluations


def _with_seats(evaluation: Evaluation, seats: int) -> Evaluation:
    return replace(evaluation, pools=tuple(replace(pool, seats=seats) for pool in evaluation.pools))
