"""The search: every knob combination climbs from one replica until it meets all objectives.

Replicas are tried one by one, because with real arrivals a percentile need not fall with every added replica and
bisection would then miss the least number. All combinations stand on the same rung at a time, so the first
rung on which one meets the objectives is the answer's replica count, known before the rest is finished; on that
rung every combination is simulated to its end, because the trade plot shows them all.

Two things are not simulated twice. A run cut short once its objectives are out of reach (see `evaluate`). And a
smaller max_num_seqs that a run with a larger one never touched: where the running requests never exceeded it,
every decision of the scheduler is the same, so the outcome is too.
Groups of combinations run in threads (the kernel releases the GIL); results do not depend on how many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

from planner.search.evaluate import Bench, Evaluation, Stopped, evaluate, judge
from planner.search.space import Combination, Status

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
    """A combination and its rungs so far, lowest first."""

    combination: Combination
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
    """All combinations that were tried. `replicas`: the least that met (the most tried if none did)."""

    climbs: tuple[Climb, ...]
    replicas: int
    feasible: bool
    stopped: bool


def climb_all(
    bench: Bench,
    combinations: Sequence[Combination],
    max_replicas: int,
    *,
    threads: int,
    on_progress: OnProgress,
) -> Climbed:
    """Search up to `max_replicas`. Stops early, with what is known, when `bench.should_stop()` says so."""
    climbs = tuple(Climb(combination) for combination in combinations if combination.status == "not tried")
    progress = _Progress(len(climbs) * max_replicas, max_replicas, on_progress)
    found = 0
    stopped = False
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for replicas in range(1, max_replicas + 1):
            open_climbs = [climb for climb in climbs if climb.met is None]
            if not open_climbs or not climbs:
                break
            progress.rung = replicas
            stopped = _rung(bench, open_climbs, replicas, replicas == max_replicas, pool, progress)
            if not found and any(climb.met for climb in climbs):
                found = replicas
                short = [c for c in open_climbs if (rung := c.at(found)) and not rung.evaluation.complete]
                stopped = stopped or _rung(bench, short, found, True, pool, None)
            if stopped:
                break
    tried = max((climb.last.replicas for climb in climbs if climb.last), default=max_replicas)
    return Climbed(climbs, found or tried, bool(found), stopped)


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
    pool: ThreadPoolExecutor,
    progress: _Progress | None,
) -> bool:
    """Evaluate `climbs` on `replicas` replicas, one group of equal budget and cap per thread; True if stopped."""
    jobs: list[tuple[list[Climb], Future[list[Evaluation]]]] = []
    for _, members in groupby(climbs, key=_group):
        group = sorted(members, key=lambda climb: -climb.combination.knobs.max_num_seqs)
        jobs.append((group, pool.submit(_evaluate_group, bench, group, replicas, complete)))
    stopped = False
    for group, job in jobs:
        try:
            evaluations = job.result()
        except Stopped:
            stopped = True
            continue
        for climb, evaluation in zip(group, evaluations, strict=True):
            status, reason = judge(evaluation, bench.objectives)
            if climb.last and climb.last.replicas == replicas:
                climb.rungs.pop()
            climb.rungs.append(Rung(replicas, evaluation, status, reason))
        if progress:
            progress.add(group)
    return stopped


def _group(climb: Climb) -> tuple[int, int]:
    knobs = climb.combination.knobs
    return knobs.max_num_batched_tokens, knobs.long_prefill_token_threshold


def _evaluate_group(bench: Bench, group: Sequence[Climb], replicas: int, complete: bool) -> list[Evaluation]:
    """Evaluations in the group's order: max_num_seqs falls, so the run before may stand for the next one."""
    evaluations: list[Evaluation] = []
    for climb in group:
        knobs = climb.combination.knobs
        if evaluations and evaluations[-1].peak_running <= knobs.max_num_seqs:
            evaluations.append(evaluations[-1])
        else:
            evaluations.append(evaluate(bench, knobs, replicas, complete=complete))
    return evaluations
