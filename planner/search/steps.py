"""How far a search is: simulations done and still to come, in its three stages.

First replicas alike climb, then two pools are split, then the finalists are looked at closely. What is to come is known
as the most that it can be; it falls as combinations meet the objectives, levels of splits need not be tried, and the
finalists are known. Progress counts what is no longer to come, so it never falls and ends at its total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from planner.search.crew import CLIMB, DRAW, SPLITS, Answers, Do, Part
from planner.search.ladder import OnProgress
from planner.search.prepare import Prepared

STAGES: Final = 3
CLIMBS, POOLS, FINALISTS = range(STAGES)
MOST_FINALISTS: Final = 3
#: Simulations of the closer look at the answer, about: loads, changes, policies, numbers of replicas.
CLOSER: Final = 45
CLOSER_LOOK: Final = "Asking the finalists again with other traffic, step times and links"


@dataclass(frozen=True, slots=True)
class Standing:
    """`stage`: what is worked on. By stage: `worked`, candidates that were simulated or rejected so far, and `cpu_s`,
    the processor time which they took; `left`, the most that are to come. whole_s: processor time of a whole run of a
    finalist, to go by those that ran whole; 0: none did. at_most: some of what is left may turn out not to be needed.
    """

    stage: int
    worked: tuple[int, ...]
    left: tuple[int, ...]
    cpu_s: tuple[float, ...]
    whole_s: float
    at_most: bool


OnStanding = Callable[[Standing], None]


@dataclass(slots=True)
class Steps:
    report: OnProgress
    tell: OnStanding
    left: list[int]
    total: int
    stage: int = CLIMBS
    done: int = 0
    rounds: int = 1  # of the trace in a finalist's draw
    worked: list[int] = field(default_factory=lambda: [0] * STAGES)
    cpu_s: list[float] = field(default_factory=lambda: [0.0] * STAGES)
    #: Runs and processor time of the parts that ran whole, by stage.
    whole: dict[int, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, prepared: Prepared, report: OnProgress, tell: OnStanding) -> Steps:
        hand, most = prepared.hand, prepared.max_replicas
        per_kind = [min(most, limit) for limit in hand.bench.fleet.most]
        climbs = sum(per_kind[c.kind] for c in hand.combinations if c.status == "not tried")
        draws = len(hand.draws) if hand.draws is not None else 0
        left = [climbs, len(hand.pairs) * (most * (most - 1) // 2), MOST_FINALISTS * draws + CLOSER]
        return cls(report, tell, left, sum(left), rounds=hand.draws.rounds if hand.draws is not None else 1)

    def climbing(self, done: int, total: int, message: str) -> None:
        self._at(CLIMBS, total - done, message)

    def splitting(self, done: int, total: int, message: str) -> None:
        self._at(POOLS, total - done, message)

    def over(self) -> None:
        self.stage = FINALISTS
        self.left = [0] * STAGES
        self._tell("")

    def watching(self, do: Do) -> Do:
        """`do`, whose answers are counted. It is asked at once, so that others begin while the caller tells what is
        known."""

        def counted(parts: Sequence[Part]) -> Iterator[Answers | None]:
            if parts and parts[0]["do"] not in (CLIMB, SPLITS):
                self._finalists(parts)
            return self._counted(parts, do(parts))

        return counted

    def _counted(self, parts: Sequence[Part], answered: Iterator[Answers | None]) -> Iterator[Answers | None]:
        for answers in answered:
            stage = {CLIMB: CLIMBS, SPLITS: POOLS}.get(parts[0]["do"], FINALISTS)
            self._count(stage, answers or ())
            if stage == FINALISTS:
                self._at(FINALISTS, max(1, self.left[FINALISTS] - 1), CLOSER_LOOK)
            yield answers

    def _count(self, stage: int, answers: Answers) -> None:
        self.worked[stage] += len(answers)
        cpu_s = sum(answer.cpu_s for answer in answers)
        self.cpu_s[stage] += cpu_s
        if runs := _whole(answers):
            before = self.whole.get(stage, (0, 0.0))
            self.whole[stage] = before[0] + runs, before[1] + cpu_s

    def _finalists(self, parts: Sequence[Part]) -> None:
        """Their draws come first and together, so then it is known how many they are."""
        if self.stage != FINALISTS and parts[0].get("what") == DRAW:
            self.left[FINALISTS] = len(parts) + CLOSER
        self.stage = FINALISTS

    def _at(self, stage: int, left: int, message: str) -> None:
        self.stage = stage
        self.left[:stage] = [0] * stage
        self.left[stage] = min(self.left[stage], left)
        self._tell(message)

    def _tell(self, message: str) -> None:
        self.done = max(self.done, self.total - sum(self.left))
        self.report(self.done, self.total, message)
        whole_s = self.rounds * max((cpu_s / runs for runs, cpu_s in self.whole.values()), default=0.0)
        at_most = self.stage != FINALISTS
        self.tell(
            Standing(self.stage, tuple(self.worked), tuple(self.left), tuple(self.cpu_s), whole_s, at_most)
        )


def _whole(answers: Answers) -> int:
    """How many runs of a part went to the end, where all did; those that stand for fewer seats are no runs."""
    if not answers or not all(answer.evaluation.complete for answer in answers):
        return 0
    return 1 + sum(one != other for one, other in pairwise(answers))
