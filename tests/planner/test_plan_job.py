"""The plan job: what it knows is stored before it ends, and what is left of it is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from calibration import jobs
from calibration.models import Calibration
from planner import tasks, work
from planner.models import Plan
from planner.plan_recipes import service_of
from planner.search import SearchSpace
from planner.verifications import why_not
from tests.ops.services import PATIENCE_S


@pytest.fixture
def queued(make_plan) -> Plan:
    space = SearchSpace((128, 256), (0,), (8, 16), max_replicas=3).to_dict()
    return make_plan(status="queued", objectives=["ttft:p95:30", "itl:p99:5"], space=space)


# The search asks from threads of its own, with connections of their own, whether to stop: rows must be committed.
@pytest.mark.django_db(transaction=True)
def test_a_first_answer_is_stored_before_the_search_ends(queued, monkeypatch) -> None:
    Calibration.objects.update(environment={"observed": {"sentinel_drift": [0.3]}})
    seen: list[dict[str, Any]] = []
    really = work.search.search

    def watched(question: Any, do: Any, *, on_partial: Any, **told_too: Any) -> Any:
        def told(so_far: Any) -> None:
            on_partial(so_far)
            seen.append(
                Plan.objects.values("status", "result", "feasible", "sentence", "done", "total").get()
            )

        return really(question, do, on_partial=told, **told_too)

    monkeypatch.setattr(work.search, "search", watched)
    assert jobs.run(Plan, str(queued.pk), work.plan) == Plan.DONE
    first = seen[0]
    assert first["status"] == "running"
    assert first["result"]["searching"] is True
    assert first["result"]["complete"] is False
    assert first["done"] < first["total"]
    choice = first["result"]["verdict"]["choice"]
    assert choice["objectives"][0]["predicted"] is not None
    assert (first["feasible"], first["sentence"]) == (None, ""), "there is no verdict yet"
    queued.refresh_from_db()
    assert queued.result["complete"] is True
    assert queued.result["searching"] is False
    first_remark = queued.result["verdict"]["remarks"][0]
    assert "The device was disturbed while it was measured" in first_remark, "the plan rests on it"
    assert queued.result["verdict"]["choice"]["replicas"] == choice["replicas"]
    assert queued.done == queued.total


def test_the_page_shows_the_best_so_far_as_that(make_plan, answers, owner_client) -> None:
    so_far = answers["feasible"] | {"searching": True, "complete": False}
    row = make_plan(so_far, status="running", feasible=None, sentence="", done=4, total=60)
    page = owner_client.get(reverse("planner:plan_detail", args=[row.pk])).content.decode()
    assert "the best so far; still searching" in page
    assert answers["feasible"]["verdict"]["sentence"].replace("<=", "≤") in page
    assert "What to start" not in page, "nothing is recommended yet"
    assert "vllm serve" not in page
    assert "data-figure-url" not in page
    assert service_of(row) is None
    assert why_not(row)
    news = _news(owner_client, row)
    so_far["verdict"] = so_far["verdict"] | {"sentence": "Another one."}
    Plan.objects.filter(pk=row.pk).update(result=so_far)
    assert _news(owner_client, row) != news, "the page hears of it"


def test_a_worker_that_died_leaves_what_it_knew(make_plan, answers, owner_client) -> None:
    so_far = answers["feasible"] | {"searching": True, "complete": False}
    row = make_plan(so_far, status="interrupted", feasible=None, sentence="")
    page = owner_client.get(reverse("planner:plan_detail", args=[row.pk])).content.decode()
    assert "stopped: the best until then" in page
    assert "still searching" not in page


def _news(client: Any, row: Plan) -> str:
    page = client.get(reverse("planner:plan_status", args=[row.pk])).content.decode()
    return page.partition('data-count="')[2].partition('"')[0]


@pytest.mark.django_db(transaction=True)
def test_plans_leave_a_worker_for_everything_else(
    queued, make_plan, owner_client, no_broker, settings, monkeypatch
):
    """Two are made at once; a third stays queued, says so, and is sent for when one has ended."""
    for _ in range(2):
        make_plan(status="running", heartbeat_at=timezone.now())
    monkeypatch.setattr(work, "shared_plan", lambda plan, run, **how: None)
    tasks.run_plan(str(queued.pk))
    queued.refresh_from_db()
    assert queued.status == Plan.QUEUED
    page = owner_client.get(reverse("planner:plan_detail", args=[queued.pk])).content.decode()
    assert "Waiting in line: 2 other plans are being made." in page
    settings.PLANS_AT_ONCE = 3
    waiting = make_plan(status="queued")
    tasks.run_plan(str(queued.pk))
    queued.refresh_from_db()
    assert queued.status == Plan.DONE
    assert no_broker[-1] == ("planner.tasks.run_plan", str(waiting.pk))


@pytest.mark.django_db(transaction=True)
def test_of_two_claims_at_once_the_second_counts_the_first(make_plan):
    plans = [str(make_plan(status="queued").pk) for _ in range(3)]
    gate = Barrier(3)

    def claimed(pk: str) -> bool:
        gate.wait(timeout=PATIENCE_S)
        try:
            return jobs.claim(Plan, pk, at_once=1) is not None
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(claimed, plans)) == [False, False, True]
