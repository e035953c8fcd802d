"""How long a plan will still take: what is left in each stage, at the pace of that stage.

A stage's candidates have a pace of their own, measured as they go: bounds reject thousands in the time of one whole
run. One to come takes the processor time of those of late, or of all of its stage, whichever is more. Pools take no
less than replicas alike did, because the few replicas that come first are soon rejected. The finalists, before they are
asked, take a whole run each. Processor time becomes seconds by how much of it there was lately to each of them, whoever
helps and whatever else the machine does.
What is left is the most that can be: what the search finds that it need not simulate is taken off as it finds it, which
the estimate says.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from planner.search.steps import CLIMBS, FINALISTS, POOLS, STAGES, Standing

LATELY_S: Final = 10.0
LEAST_S: Final = 1.0  # before anything is said


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, None while there is too little to tell by; `at_most`: it may well be less."""

    left_s: float | None
    at_most: bool


NOT_YET: Final = Estimate(None, at_most=False)


class Pace:
    """Told how a search stands; says how many seconds are left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, Standing]] = deque()

    def left(self, standing: Standing) -> Estimate:
        now_s = self._clock()
        self._seen.append((now_s, standing))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= LATELY_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        passed_s, worked_s = now_s - since_s, sum(standing.cpu_s) - sum(before.cpu_s)
        if passed_s < LEAST_S or worked_s <= 0.0:
            return NOT_YET
        left_s = 0.0
        for stage in range(STAGES):
            if standing.left[stage]:
                each_s = _each_s(standing, before, stage)
                if each_s is None:
                    return NOT_YET
                left_s += standing.left[stage] * each_s
        return Estimate(left_s * passed_s / worked_s, standing.at_most)


def _each_s(standing: Standing, before: Standing, stage: int) -> float | None:
    """Processor time of a candidate to come; None: nothing is known of it."""
    worked, cpu_s = standing.worked[stage], standing.cpu_s[stage]
    lately = worked - before.worked[stage]
    known_s = [standing.whole_s] if stage == FINALISTS and not worked and standing.whole_s else []
    if worked:
        known_s.append(cpu_s / worked)
    if lately:
        known_s.append((cpu_s - before.cpu_s[stage]) / lately)
    if standing.worked[CLIMBS] and (stage == POOLS or not known_s):
        known_s.append(standing.cpu_s[CLIMBS] / standing.worked[CLIMBS])
    return max(known_s, default=None)
