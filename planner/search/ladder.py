"""The search: every knob combination climbs from one replica until it meets all objectives.

Replicas are tried one by one, because with real arrivals a percentile need not fall with every added replica and
bisection would then miss the least number. All combinations stand on the same rung at a time, so the first
rung on which one meets the objectives is the answer's replica count, known before the rest is finished; on that
rung every combination is simulated to its end, because the trade plot shows them all.

Two things are not simulated twice. A run cut short once its objectives are out of reach (see `evaluate`). And a
smaller max_num_seqs that a run with a larger one never touched: where the running requests never exceeded it,
every decision of the scheduler is the same, so the outcome is too.
A group of combinations is one part of the work (`crew`); results do not depend on who does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from planner.search.combinations import Combination, Status
from planner.search.crew import Crew
from planner.search.engines import budget_of, cap_of, seqs_of, variant_of
from planner.search.evaluate import Bench, Evaluation, evaluate, judge
from planner.simulation.cluster.deployment import ROUND_ROBIN
from planner.simulation.knobs import Knobs

OnProgress = Callable[[int, int, str], None]


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
    found, most = 0, progress.max_replicas
    stopped = False
    progress.met = 0
    untold: Callable[[], None] = _nothing  # told while the next number is being tried
    for replicas in range(1, most + 1):
        open_climbs = [climb for climb in climbs if climb.met is None]
        if not open_climbs or not climbs:
            break
        progress.rung = replicas
        stopped = _rung(bench, open_climbs, replicas, replicas == most, crew, progress, untold)
        untold = _nothing
        if not found:
            met = any(climb.met for climb in climbs)
            untold = partial(on_rung, Climbed(tuple(climbs), replicas, feasible=met, stopped=stopped))
            found = replicas if met else 0
            short = [c for c in open_climbs if (rung := c.at(found)) and not rung.evaluation.complete]
            if short and not stopped:
                stopped = _rung(bench, short, found, True, crew, None, untold)
                untold = _nothing
        if stopped:
            break
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
    rung: int = 1

    def add(self, climbs: Sequence[Climb]) -> None:
        met = sum(climb.met is not None for climb in climbs)
        self.met += met
        self.done += len(climbs) + met * (self.max_replicas - self.rung)
        where = f"{self.rung} replica{'s' if self.rung > 1 else ''}"
        self.report(
            self.done, self.total, f"Trying {where}: {self.met} combinations meet the objectives so far"
        )


def _rung(
    bench: Bench,
    climbs: Sequence[Climb],
    replicas: int,
    complete: bool,
    crew: Crew,
    progress: _Progress | None,
    begun: Callable[[], None],
) -> bool:
    """Evaluate `climbs` on `replicas` replicas, those of equal budget and cap together; True if stopped. `begun` is
    called when others may be at work already."""
    groups = [
        sorted(members, key=lambda climb: -seqs_of(climb.combination.knobs))
        for _, members in groupby(climbs, key=_group)
    ]
    places = [[climb.position for climb in group] for group in groups]
    stopped = False
    answered = crew.climb(places, replicas, whole=complete)
    begun()
    for group, answers in zip(groups, answered, strict=True):
        if answers is None:
            stopped = True
            continue
        for climb, answer in zip(group, answers, strict=True):
            status, reason = judge(answer.evaluation, bench.objectives)
            if climb.last and climb.last.replicas == replicas:
                climb.rungs.pop()
            climb.rungs.append(Rung(replicas, answer.evaluation, status, reason))
        if progress:
            progress.add(group)
    return stopped


def _nothing() -> None:
    pass


def _group(climb: Climb) -> object:
    """All but the sequences."""
    knobs = climb.combination.knobs
    own = climb.combination
    return own.kind, own.router, budget_of(knobs), cap_of(knobs), variant_of(knobs)


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
