"""What is left of a plan, by a clock that is moved by hand: stage by stage, and never less than it will be."""

from __future__ import annotations

import pytest

from planner.pace import Pace
from planner.search.steps import CLIMBS, FINALISTS, POOLS, Standing


class Machine:
    """Two processes; candidates of a stage take what is said."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.worked, self.cpu_s, self.left = [0, 0, 0], [0.0, 0.0, 0.0], [100, 1000, 40]
        self.whole_s = 0.0
        self.pace = Pace(lambda: self.now_s)
        self.tell(CLIMBS)

    def tell(self, stage: int) -> tuple[float | None, bool]:
        at_most = stage != FINALISTS
        told = self.pace.left(
            Standing(stage, tuple(self.worked), tuple(self.left), tuple(self.cpu_s), self.whole_s, at_most)
        )
        return told.left_s, told.at_most

    def work(self, stage: int, candidates: int, each_s: float) -> tuple[float | None, bool]:
        told: tuple[float | None, bool] = (None, False)
        for _ in range(candidates):
            self.now_s += each_s / 2
            self.cpu_s[stage] += each_s
            self.worked[stage] += 1
            self.left[stage] -= 1
            told = self.tell(stage)
        return told

    def need_not(self, stage: int, left: int) -> None:
        self.left[stage] = left


def test_it_is_too_early_to_tell() -> None:
    machine = Machine()
    assert machine.work(CLIMBS, 4, 0.1) == (None, False)
    assert machine.work(CLIMBS, 16, 0.1)[0] is not None


def test_stages_to_come_are_counted_at_what_is_known_of_them() -> None:
    machine = Machine()
    machine.whole_s = 0.5  # the finalists' runs are whole, a climb is mostly cut
    left_s, at_most = machine.work(CLIMBS, 50, 0.1)
    assert left_s == pytest.approx((50 * 0.1 + 1000 * 0.1 + 40 * 0.5) / 2)
    assert at_most


def test_each_stage_has_its_own_pace_and_what_is_not_needed_is_taken_off() -> None:
    machine = Machine()
    machine.whole_s = 0.5
    machine.work(CLIMBS, 100, 0.1)
    machine.work(POOLS, 500, 0.001)  # bounds reject them
    left_s, _ = machine.work(POOLS, 100, 0.2)
    assert left_s is not None
    assert left_s == pytest.approx((400 * 0.2 + 40 * 0.5) / 2, rel=0.01), (
        "the dear ones of late, not the mean"
    )
    machine.need_not(POOLS, 0)
    left_s, at_most = machine.work(FINALISTS, 10, 0.7)
    assert left_s == pytest.approx(30 * 0.7 / 2, rel=0.1)
    assert not at_most


def test_it_is_never_less_than_what_it_comes_to() -> None:
    """With all that is left really needed, and candidates that get no dearer within a stage."""
    machine = Machine()
    machine.whole_s = 0.4
    told: list[tuple[float, float]] = []
    for stage, candidates, each_s in ((CLIMBS, 100, 0.2), (POOLS, 1000, 0.1), (FINALISTS, 40, 0.4)):
        for _ in range(candidates):
            left_s, _ = machine.work(stage, 1, each_s)
            if left_s is not None:
                told.append((machine.now_s, left_s))
    assert all(at_s + left_s >= machine.now_s - 1e-6 for at_s, left_s in told)
    assert told[-1][1] == 0.0


def test_a_machine_that_does_something_else_as_well_takes_longer() -> None:
    machine = Machine()
    machine.need_not(POOLS, 0)
    machine.need_not(FINALISTS, 0)
    before_s, _ = machine.work(CLIMBS, 20, 0.1)
    for _ in range(60):
        machine.now_s += 0.35
        left_s, _ = machine.work(CLIMBS, 1, 0.1)
    assert before_s == pytest.approx(80 * 0.05)
    assert left_s == pytest.approx(20 * 0.4, rel=0.05)
