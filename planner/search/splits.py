"""Prefill and decode on pools of their own: every split of every number of replicas, until one meets the objectives.

Numbers of replicas are tried from two on, all splits P : D of a number together, each with every pair of knobs. As
soon as a number has one that meets, the rest of that number is finished and the search ends: more replicas cost more.
Where replicas alike meet on n, it goes on to BEYOND more than n, to tell what separate pools would cost. With two kinds
of hardware each pool is tried on either, and what costs the same takes the place of a number of replicas.

Most splits are hopeless, and `screening` says so cheaply; all others are simulated on the whole trace. As in `ladder`,
a smaller sequence limit that a larger one never touched is not simulated again. Pairs that differ in it alone are one
part of the work (`crew`); results do not depend on who does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.search.combinations import Candidate, Pools, Status
from planner.search.crew import Crew, Evaluated
from planner.search.engines import budget_of, seqs_of
from planner.search.evaluate import Bench, Evaluation, evaluation_of, judge, run
from planner.search.fleet import cost_of
from planner.search.floors import out_of_reach
from planner.search.ladder import OnProgress
from planner.search.screening import Hopeless, Screen, fails_early, unseen, watch

BEYOND: Final = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate that was tried, or rejected by a bound (its evaluation is then not complete)."""

    candidate: Candidate
    evaluation: Evaluation
    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class Splits:
    """All attempts, in the order of their replicas; `most_replicas`: the most that were tried (0: none)."""

    attempts: tuple[Attempt, ...] = ()
    most_replicas: int = 0
    stopped: bool = False

    @property
    def met(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.status == "meets")


def search_splits(
    bench: Bench,
    crew: Crew,
    most_replicas: int,
    *,
    most_cost: float | None = None,
    on_progress: OnProgress,
    on_level: Callable[[Splits], None] = lambda splits: None,
) -> Splits:
    """Try the crew's pairs on 2..most_replicas replicas that cost at most `most_cost`; `on_level` is told what is known
    after each cost."""
    pairs = crew.pairs
    if not pairs or bench.link is None:
        return Splits()
    levels = _levels(bench, pairs, most_replicas, most_cost)
    total = sum(len(group) for level in levels for group, _, _ in level)
    found: list[Attempt] = []
    done = most = 0
    known = Splits()
    for level in levels:
        stopped = False
        most = max(most, *(replicas for _, _, replicas in level))
        answered = crew.splits(level)
        if known.attempts:
            on_level(known)  # while this level is being tried
        for (group, prefill, replicas), answers in zip(level, answered, strict=True):
            if answers is None:
                stopped = True
                continue
            for position, answer in zip(group, answers, strict=True):
                pair = pairs[position]
                found.append(_attempt(bench, Candidate(pair.decode, replicas, pair, prefill), answer))
            done += len(group)
            on_progress(done, total, f"Trying separate pools on {replicas} replicas")
        known = Splits(tuple(found), most, stopped)
        if stopped or known.met:
            return known
    if known.attempts:
        on_level(known)
    return Splits(tuple(found), most_replicas)


def _levels(
    bench: Bench, pairs: Sequence[Pools], most_replicas: int, most_cost: float | None
) -> list[list[tuple[list[int], int, int]]]:
    """Groups of pairs (positions) with their prefill replicas and all replicas, by what they cost together, the
    cheapest first: of one kind of hardware, by their number."""
    groups: dict[object, list[int]] = {}
    for position, pair in enumerate(pairs):
        groups.setdefault(_but_for_seqs(pair), []).append(position)
    fleet = bench.fleet
    levels: dict[float, list[tuple[list[int], int, int]]] = {}
    for replicas in range(2, most_replicas + 1):
        for prefill in range(1, replicas):
            for group in groups.values():
                pair = pairs[group[0]]
                candidate = Candidate(pair.decode, replicas, pair, prefill)
                cost = cost_of(candidate, fleet.per_replica)
                if fleet.allows(candidate) and (most_cost is None or cost <= most_cost):
                    levels.setdefault(cost, []).append((group, prefill, replicas))
    return [levels[cost] for cost in sorted(levels)]


def _attempt(bench: Bench, candidate: Candidate, answer: Evaluated) -> Attempt:
    if answer.rejected:
        return Attempt(candidate, answer.evaluation, "fails", answer.rejected)
    return Attempt(candidate, answer.evaluation, *judge(answer.evaluation, bench.objectives))


def _but_for_seqs(pair: Pools) -> object:
    return (
        pair.prefill_kind,
        pair.decode_kind,
        pair.router,
        pair.prefill,
        budget_of(pair.decode),
        pair.hand_off,
        pair.transfer_chunk_tokens,
        pair.local_prefill_tokens,
    )


def evaluate_pairs(
    bench: Bench, pairs: Sequence[Pools], prefill: int, replicas: int, screen: Screen | None
) -> list[Evaluated]:
    """In the order of `pairs`, which differ in the decode pool's sequences only. `screen` None: all run whole."""
    found: dict[Pools, Evaluated] = {}
    before: _Known | None = None
    for pair in sorted(pairs, key=lambda pair: -seqs_of(pair.decode)):
        candidate = Candidate(pair.decode, replicas, pair, prefill)
        before = _repeated(before, candidate) or _evaluated(bench, candidate, screen)
        found[pair] = before.answer
    return [found[pair] for pair in pairs]


@dataclass(frozen=True, slots=True)
class _Known:
    """peak_running: of the decode pool, as far as the run went; None: nothing ran."""

    answer: Evaluated
    peak_running: int | None = None


def _repeated(before: _Known | None, candidate: Candidate) -> _Known | None:
    """What it did with more seats, where those were never filled; so it did up to where it was abandoned."""
    if before is None or before.peak_running is None:
        return None
    seats = seqs_of(candidate.knobs)
    if before.peak_running > seats:
        return None
    if before.answer.rejected:
        return before
    evaluation = before.answer.evaluation
    pools = (*evaluation.pools[:-1], replace(evaluation.pools[-1], seats=seats))
    return replace(before, answer=Evaluated(replace(evaluation, pools=pools)))


def _evaluated(bench: Bench, candidate: Candidate, screen: Screen | None) -> _Known:
    look = None
    if screen is not None:
        reason = out_of_reach(bench, screen.floors, candidate)
        if not reason and screen.opening is not None:
            reason = fails_early(bench, screen.opening, candidate)
        if reason:
            return _Known(Evaluated(unseen(), reason))
        look = watch(bench, screen.looks) if screen.looks else None
    try:
        evaluation = evaluation_of(bench, run(bench, candidate, look))
    except Hopeless as error:
        return _Known(Evaluated(unseen(), error.reason), error.peak_running)
    return _Known(Evaluated(evaluation), evaluation.pools[-1].peak_running)
