"""A plan's schedule by time of day: asked for on page, API and command, computed by the job, shown and drawn."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from django.core.management import call_command
from django.urls import reverse

from calibration import jobs
from planner import services, work
from planner.charts import plan_figure
from planner.models import Plan
from planner.plan_forms import PlanForm
from planner.result_page import question_of
from planner.schedule_page import schedule_rows, schedule_sentence
from planner.search.inputs import answer_sha256, sha256
from planner.search.periods import Asked
from planner.traffic import Traffic
from tests.planner.test_charts import check
from tests.planner.test_views_plans import text_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def not_stopped(monkeypatch) -> None:
    """The search's threads have connections of their own, which see nothing of a test's transaction."""
    monkeypatch.setattr(jobs.JobRun, "should_stop", lambda self: False)


@pytest.fixture
def day(project, owner):
    """Nine hours, of which the fifth is busy."""
    random = np.random.default_rng(3)
    counts = [20, 20, 20, 40, 160, 40, 20, 20, 20]
    arrival_s = np.sort(np.concatenate([3600 * (h + random.random(n)) for h, n in enumerate(counts)]))
    traffic = Traffic(
        arrival_s - arrival_s[0], random.integers(50, 400, len(arrival_s)), random.integers(20, 60, len(arrival_s)),
        "day", "synthetic",
    )  # fmt: skip
    return services.create_traffic(project, owner, "day", traffic)


@pytest.fixture
def question(published, day):
    return {
        "calibration": str(published.pk), "traffic": str(day.pk), "objectives": ["ttft:p90:2"], "max_replicas": 3,
        "budgets_tokens": [256], "chunk_caps_tokens": [0], "max_num_seqs": [8], "headroom": 0.0,
        "price_per_gpu_hour": 2.0,
    }  # fmt: skip


def planned(question, owner, **more) -> Plan:
    form = PlanForm({**question, **more}, user=owner)
    assert form.is_valid(), form.errors
    plan = services.create_plan(form.request().calibration.project, owner, form.request())
    jobs.run(Plan, str(plan.pk), work.plan)
    plan.refresh_from_db()
    assert plan.status == Plan.DONE, plan.error
    return plan


def test_a_long_traffic_gets_a_schedule_and_every_place_shows_it(
    question, owner, owner_client, bearer
) -> None:
    plan = planned(question, owner, first_request_at="08:00")
    schedule = plan.result["schedule"]
    assert [need["start_s"] / 3600 for need in schedule["needs"]] == list(range(8, 17))
    assert sum(need["requests"] for need in schedule["needs"]) == 360
    assert schedule["constant_cost"] == pytest.approx(2.0 * schedule["constant_replica_hours"])
    page = text_of(owner_client.get(reverse("planner:plan_detail", args=[plan.pk])).content.decode())
    for words in ("By time of day", "08:00 to", "replica-hours over the day", "drain"):
        assert words in page
    figure = owner_client.get(reverse("planner:plan_figure", args=[plan.pk, "schedule"])).json()
    check(figure)
    assert len(figure["table"]["rows"]) == 9
    answer = owner_client.get(f"/api/v1/plans/{plan.pk}", headers=bearer(owner)).json()
    assert answer["result"]["schedule"] == schedule


def test_by_parts_and_none(question, owner) -> None:
    parts = planned(question, owner, schedule="parts", schedule_parts=3).result["schedule"]
    assert len(parts["needs"]) == 3
    assert planned(question, owner, schedule="none").result["schedule"] is None


def test_the_hashes_cover_the_schedule_and_asked_again_it_is_the_same(
    question, owner, owner_client, no_broker
) -> None:
    plan = planned(question, owner, schedule="parts", schedule_parts=3)
    result = plan.result
    assert result["inputs"]["schedule"] == {"kind": "parts", "parts": 3, "first_request_s": 0.0}
    assert sha256(result["inputs"]) == result["content_hash"]
    assert answer_sha256(result) == result["answer_hash"]
    other = planned(question, owner, schedule="parts", schedule_parts=2).result
    assert other["content_hash"] != result["content_hash"]
    changed = json.loads(json.dumps(result))
    changed["schedule"]["needs"][0]["need"]["replicas"] += 1
    assert answer_sha256(changed) != result["answer_hash"]

    again = services.rerun(plan, owner)
    jobs.run(Plan, str(again.pk), work.plan)
    again.refresh_from_db()
    assert again.result == result
    exported = json.loads(owner_client.get(reverse("planner:result_json", args=[again.pk])).content)
    assert answer_sha256(exported) == exported["answer_hash"] == result["answer_hash"]
    page = text_of(owner_client.get(reverse("planner:plan_detail", args=[plan.pk])).content.decode())
    assert "in 3 equal parts of the traffic" in page
    assert result["answer_hash"] in page


def test_the_question_is_kept_and_can_be_asked_again(question, owner) -> None:
    form = PlanForm({**question, "schedule": "hours", "first_request_at": "09:30"}, user=owner)
    assert form.is_valid(), form.errors
    plan = services.create_plan(form.request().calibration.project, owner, form.request())
    assert Asked(**plan.schedule) == Asked("hours", first_request_s=34_200.0)
    again = PlanForm(question_of(plan), user=owner)
    assert again.is_valid(), again.errors
    assert again.request().schedule == form.request().schedule


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"schedule": "weekly"}, "schedule"), ({"schedule": "parts", "schedule_parts": 1}, "schedule_parts"),
     ({"schedule_parts": 4}, "schedule_parts"), ({"first_request_at": "noon"}, "first_request_at"),
     ({"schedule": "none", "first_request_at": "09:00"}, "first_request_at")],
)  # fmt: skip
def test_mistakes_stand_beside_their_fields(
    asked, field, question, owner, owner_client, bearer, no_broker
) -> None:
    form = PlanForm({**question, **asked}, user=owner)
    assert not form.is_valid()
    assert field in form.errors
    answer = owner_client.post(
        "/api/v1/plans", json.dumps(question | asked), content_type="application/json", headers=bearer(owner)
    )
    assert answer.status_code == 422
    assert any(error["field"] == field for error in answer.json()["errors"]), answer.content


def test_the_command_prints_it(question, owner, published, day, project) -> None:
    out = io.StringIO()
    call_command(
        "plan", "--calibration", str(published.pk), "--traffic", str(day.pk), "--objective", "ttft:p90:2",
        "--max-replicas", "3", "--budgets-tokens", "256", "--chunk-caps-tokens", "0", "--max-num-seqs", "8",
        "--schedule", "parts", "--schedule-parts", "2", "--json", "--user", "owner", stdout=out,
    )  # fmt: skip
    lines = out.getvalue().splitlines()
    assert any(re.match(r"  0 to \S+ min: \d", line) for line in lines), lines
    assert len(json.loads(lines[-1])["schedule"]["needs"]) == 2


def test_where_no_number_holds_it_is_said() -> None:
    need = {
        "replicas": None,
        "prefill_replicas": 0,
        "status": "saturated",
        "reason": "too much",
        "claimed": True,
    }
    period = {
        "start_s": 0.0,
        "end_s": 3600.0,
        "requests": 5,
        "rate_per_s": 1.0,
        "worst": 0,
        "need": need,
        "days": [need],
    }
    schedule = {
        "periods": {"by": "hours"}, "needs": [period], "saved_share": None, "constant_replicas": None,
        "most_replicas": 2, "planned_replicas": 1,
    }  # fmt: skip
    assert "In 1 of 1 periods nothing up to 2 replicas holds" in schedule_sentence(schedule)
    assert schedule_rows(schedule)[0].need == "none holds"
    check(plan_figure("schedule", {"schedule": schedule}))


def test_an_answer_without_one_draws_nothing(plan_result) -> None:
    assert plan_figure("schedule", plan_result)["empty"]
