"""Who takes part in a search: does what a part says (`crew`), from the question alone.

Whoever has the same question has the same lists, benches and draws, so a part means the same everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calibration.steptime.foreign import with_mixed_attention
from planner.search.combinations import Candidate, Combination, Pools
from planner.search.confidence import apart
from planner.search.crew import (
    ALONE,
    CHANGE,
    CLIMB,
    DRAW,
    LOAD,
    MIXED,
    POLICY,
    SPLITS,
    Answers,
    Evaluated,
    Part,
)
from planner.search.draws import Draws, drawn
from planner.search.engines import budget_of
from planner.search.evaluate import Bench, Evaluation, evaluate_candidate
from planner.search.ladder import climb_group
from planner.search.policies import under_policy
from planner.search.screening import Screen, screen_of
from planner.search.sensitivity import changes
from planner.search.splits import evaluate_pairs


@dataclass(slots=True)
class Hand:
    """One question's benches. `draws` None: nothing is asked in draws; `exhaustive`: nothing is screened, to check
    the bounds by. step_sigma, longest: see `sensitivity.changes`."""

    bench: Bench
    combinations: Sequence[Combination] = ()
    pairs: Sequence[Pools] = ()
    draws: Draws | None = None
    step_sigma: float = 0.0
    longest: int = 0
    exhaustive: bool = False
    _screen: Screen | None = field(default=None, init=False)

    def do(self, part: Part) -> Answers:
        """Raises Stopped when the caller wants to stop."""
        began_s = time.thread_time()
        first, *others = self._do(part)
        return [replace(first, cpu_s=time.thread_time() - began_s), *others]

    def _do(self, part: Part) -> Answers:
        if part["do"] == CLIMB:
            members = [self.combinations[i] for i in part["of"]]
            bench = self.bench.of_kind(members[0].kind)
            return climb_group(bench, members, part["rungs"], whole_at=part["whole_at"])
        if part["do"] == SPLITS:
            pairs = [self.pairs[i] for i in part["of"]]
            return evaluate_pairs(self.bench, pairs, part["prefill"], part["replicas"], self.screen())
        return [Evaluated(self.under(self.candidate(part["of"]), part["what"], part["value"]))]

    def candidate(self, of: Sequence[int]) -> Candidate:
        in_pools, position, replicas, prefill = of
        if in_pools:
            pools = self.pairs[position]
            return Candidate(pools.decode, replicas, pools, prefill)
        chosen = self.combinations[position]
        return Candidate(chosen.knobs, replicas, kind=chosen.kind, router=chosen.router)

    def under(self, candidate: Candidate, what: str, value: Any) -> Evaluation:
        """`value`: a draw's number, a factor on mixed attention, a factor on the load, a change's number, a policy."""
        bench = self.bench
        if what == DRAW and self.draws is not None:
            bench = drawn(bench, self.draws, value)
        elif what == MIXED:
            bench = bench.with_steps(lambda steps: with_mixed_attention(steps, value))
        elif what == LOAD:
            bench = replace(bench, requests=bench.requests.faster(value))
        elif what == CHANGE:
            change = changes(bench, candidate, self.step_sigma, self.longest)[value]
            bench, candidate = change.make()
        elif what == ALONE:
            bench = apart(bench)
        elif what == POLICY:
            bench, candidate = under_policy(bench, candidate, value)
        return evaluate_candidate(bench, candidate)

    def screen(self) -> Screen | None:
        """Made when the first split is asked for. Two threads may both make it, which does no harm."""
        if self.exhaustive:
            return None
        if self._screen is None:
            self._screen = screen_of(self.bench, max(budget_of(pair.prefill) for pair in self.pairs))
        return self._screen
