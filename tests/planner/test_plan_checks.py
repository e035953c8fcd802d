"""What a plan's traffic cannot have is said beside the field: nothing of it is left for the job to find."""

from __future__ import annotations

import numpy as np
import pytest

from planner import plan_checks
from planner.plan_checks import traffic_errors
from planner.search import Conditions, parse_objectives
from planner.services import create_traffic
from planner.traffic import Traffic

pytestmark = pytest.mark.django_db


@pytest.fixture
def classed(project, owner):
    """Ten requests of chat, one a second, then ten of batch with one token each."""
    kinds = np.repeat(np.array([0, 1], dtype=np.int16), 10)
    made = Traffic(
        np.arange(20.0), np.full(20, 50), np.where(kinds == 0, 30, 1), "made", "columns", request_class=kinds,
        class_names=("chat", "batch"),
    )  # fmt: skip
    return create_traffic(project, owner, "two classes", made)


@pytest.mark.parametrize(
    ("goals", "window_s", "says"),
    [
        (["chat=ttft:p95:1", "batch=e2e:p95:9", "ttft:p50:1"], None, "TTFT p50 is for nobody: every class has"),
        (["chat=ttft:p95:1", "ttft:p50:1"], None, ""),
        (["batch=itl:p99:1"], None, "no request has a second token, so there are no gaps"),
        (["chat=itl:p99:1", "batch=ttft:p99:1"], None, ""),
        (["chat=ttft:p95:1"], (10.0, 20.0), "is for nobody: no request is of this class in the window."),
        (["chat=ttft:p95:1", "ttft:p50:1"], (0.0, 10.0), "is for nobody: every class has objectives of its own in the"),
        (["itl:p99:1"], (10.0, 20.0), "no request has a second token, so there are no gaps in the window"),
        (["itl:p99:1"], (0.0, 20.0), ""),
    ],
)  # fmt: skip
def test_an_objective_for_nobody_is_refused_before_a_job_starts(goals, window_s, says, classed) -> None:
    conditions = Conditions(window_s=window_s)
    found = list(traffic_errors(classed, conditions, parse_objectives(goals)))
    assert [field for field, _ in found] == (["objectives"] if says else [])
    assert all(says in message for _, message in found)


def test_gaps_of_classes_are_counted_in_the_window(classed, monkeypatch) -> None:
    monkeypatch.setattr(plan_checks, "MAX_RECORDED_TOKENS", 100)
    goals = parse_objectives(["chat=itl:p99:1"])
    assert "and there are 310" in next(traffic_errors(classed, Conditions(), goals))[1]
    assert not list(traffic_errors(classed, Conditions(window_s=(0.0, 3.0)), goals))
