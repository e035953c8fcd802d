"""What the command prints of a finished plan beside its sentence."""

from __future__ import annotations

import pytest

from planner.plan_text import MOST, lines_of

pytestmark = pytest.mark.django_db


def test_the_answer_comes_with_what_stands_behind_it_and_how_to_go_on(make_plan, answers) -> None:
    plan = make_plan(answers["feasible"])
    lines = list(lines_of(plan))
    summary = answers["feasible"]["summary"]
    assert lines[0] == plan.sentence
    told = [line for line in lines if line.startswith("  TTFT p95, at most 100 ms: ")]
    assert len(told) == 1
    assert " ms (90 % interval " in told[0]
    assert ", holds with probability " in told[0]
    assert [line.removeprefix("note: ") for line in lines if line.startswith("note: ")] == summary["remarks"]
    [flags] = [line for line in lines if line.startswith("flags: ")]
    assert flags.split()[1:] == summary["flags"]
    assert f"plan {plan.pk}" in lines
    assert lines[-1] == f"Is it true? manage.py verify {plan.pk}"
    assert len(lines) <= 20


@pytest.mark.parametrize("which", ["impossible", "short", "saturated"])
def test_without_a_recommendation_there_is_nothing_to_start_or_verify(make_plan, answers, which) -> None:
    plan = make_plan(answers[which])
    lines = list(lines_of(plan))
    assert lines[-1] == f"plan {plan.pk}"
    assert not any(line.startswith(("flags", "Is it true")) for line in lines)
    if which == "saturated":
        assert any(line.endswith(": no value") for line in lines)


def test_imported_step_times_are_not_replayed(make_plan, answers, published) -> None:
    type(published).objects.update(source="imported")
    published.refresh_from_db()
    *_, last = lines_of(make_plan(answers["feasible"], calibration=published))
    assert "Its step times were imported" in last


def test_many_objectives_and_remarks_are_cut_and_said_to_be(make_plan, answers) -> None:
    answer = answers["feasible"]
    summary = {
        **answer["summary"], "objectives": answer["summary"]["objectives"] * 5, "remarks": [f"r{i}" for i in range(30)]
    }  # fmt: skip
    lines = list(lines_of(make_plan({**answer, "summary": summary})))
    assert len(lines) <= MOST + 6 <= 20
    assert "  and 8 more objectives: --json" in lines
    assert "note: 23 more: --json" in lines
