"""The what-if's page and API: the plan's numbers where it stands, nothing stored, one at a time, and for whom."""

from __future__ import annotations

import json
import re
import uuid

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import limits
from planner import what_if_views
from planner.models import Plan, TrafficSet
from planner.what_if_turns import Busy, Overtaken
from tests.planner.test_views_plans import NASTY, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def row(finished_plan) -> Plan:
    return finished_plan


@pytest.fixture
def api(owner, bearer, no_broker) -> Client:
    return Client(headers=bearer(owner))


def url(row: Plan, name: str = "what_if") -> str:
    return reverse(f"planner:{name}", args=[row.pk])


def ask(client: Client, row: Plan, **setting):
    return client.post(
        f"/api/v1/plans/{row.pk}/what-if", json.dumps(setting), content_type="application/json"
    )


def test_the_api_answers_with_the_plans_own_numbers_at_its_start(api, row) -> None:
    answer = ask(api, row)
    assert answer.status_code == 200, answer.content
    body, choice = answer.json(), row.result["verdict"]["choice"]
    for key in ("deployment", "engine", "replicas", "split", "knobs", "status", "reason", "gpus"):
        assert body["answer"][key] == choice[key], key
    plain = ("metric", "percentile", "limit", "predicted", "margin", "samples", "requests", "claimed")
    assert [{k: o[k] for k in plain} for o in body["answer"]["objectives"]] == [
        {k: o[k] for k in plain} for o in choice["objectives"]
    ]
    assert body["answer"]["behaviour"] == choice["behaviour"]
    assert body["answer"]["curves_s"] == row.result["why"]["curves_s"]
    assert all(o["low"] is None and o["probability"] is None for o in body["answer"]["objectives"])
    assert body["answer"]["setting"] == body["start"]
    assert body["window"] is None and body["neighbours"] == []


def test_page_and_api_say_the_same(api, owner_client, row) -> None:
    setting = {"rate_multiplier": 3.0, "budget_tokens": 128, "replicas": 1}
    body = ask(api, row, **setting).json()["answer"]
    page = text_of(owner_client.post(url(row, "what_if_move"), setting).content.decode())
    for o in body["objectives"]:
        assert f"{o['predicted'] * 1e3:,.3g}" in page
    assert "No interval here: a full plan gives it." in page
    assert body["status"] in page


def test_the_page_starts_where_the_plan_stands(owner_client, row) -> None:
    page = owner_client.get(url(row)).content.decode()
    start = row.result["verdict"]["choice"]
    values = dict(re.findall(r'<input type="number"[^>]* name="(\w+)" value="([^"]*)"', page))
    assert float(values["replicas"]) == start["replicas"]
    assert float(values["budget_tokens"]) == start["knobs"]["max_num_batched_tokens"]
    assert float(values["limit_ms_0"]) == 1000 * start["objectives"][0]["limit"]
    assert values["link_gb_per_s"] == ""
    assert page.count('type="range"') == len(values)
    assert 'hx-trigger="load, input' in page


def test_without_scripts_the_form_is_answered_whole(owner_client, row) -> None:
    answer = owner_client.post(url(row), {"replicas": 2})
    page = text_of(answer.content.decode())
    assert answer.status_code == 200
    for words in ("Objectives", "What binds", "One step each way", "Replicas 2 → 1", "the plan:"):
        assert words in page
    assert "<svg" in answer.content.decode()
    assert "style=" not in answer.content.decode()


def test_mistakes_stand_beside_their_fields(owner_client, api, row) -> None:
    wrong = {"rate_multiplier": "-1", "budget_tokens": "x", "prefill_replicas": ""}
    page = owner_client.post(url(row, "what_if_move"), wrong).content.decode()
    for name in ("rate_multiplier", "budget_tokens"):
        assert re.search(rf'id="id_{name}_error"[^>]*><li>', page), name
    assert owner_client.post(url(row), wrong).status_code == 422
    assert owner_client.get(url(row), {"replicas": "none"}).status_code == 422
    for sent, field in (
        ({"replicas": 0}, "replicas"), ({"replicas": 2, "prefill_replicas": 1}, "link_gb_per_s"),
        ({"replicas": 2, "prefill_replicas": 2, "link_gb_per_s": 10.0}, "prefill_replicas"),
        ({"objectives": ["ttft:p95"]}, "objectives"), ({"objectives": ["ttft:p95:1", "ttft:p95:2"]}, "objectives"),
        ({"link_gb_per_s": 0.0}, "link_gb_per_s"), ({"surprise": 1}, "surprise"),
    ):  # fmt: skip
        answer = ask(api, row, **sent)
        assert answer.status_code == 422, (sent, answer.content)
        assert any(e["field"] == field for e in answer.json()["errors"]), (sent, answer.json())


def test_neighbours_follow_and_lead_on(owner_client, api, row) -> None:
    page = owner_client.post(url(row, "what_if_move"), {}).content.decode()
    assert url(row, "what_if_neighbours") in page
    around = owner_client.post(url(row, "what_if_neighbours"), {"rate_multiplier": "2"}).content.decode()
    links = re.findall(r'href="([^"]+\?[^"]+)"', around)
    assert links
    assert all("rate_multiplier=2" in link for link in links)
    assert owner_client.get(links[0].replace("&amp;", "&")).status_code == 200
    found = ask(api, row, neighbours=True).json()["neighbours"]
    assert {n["knob"] for n in found} >= {"budget_tokens", "replicas"}
    assert all(n["answer"]["setting"][n["knob"]] == n["after"] for n in found)


def test_nothing_is_stored_until_it_is_asked_for(owner_client, api, row, no_broker) -> None:
    def stored():
        return (
            Plan.objects.count(),
            TrafficSet.objects.count(),
            list(Plan.objects.values_list("result", flat=True)),
        )

    before = stored()
    ask(api, row, replicas=2, neighbours=True)
    owner_client.post(url(row), {"replicas": 2})
    owner_client.post(url(row, "what_if_neighbours"), {})
    assert stored() == before and no_broker == []
    setting = {"limit_ms_0": "1500", "rate_multiplier": "1.5", "budget_tokens": "384", "link_gb_per_s": "10"}
    answer = owner_client.post(url(row, "what_if_save"), setting)
    made = Plan.objects.exclude(pk=row.pk).get()
    assert answer.status_code == 302 and str(made.pk) in answer["Location"]
    assert made.objectives == ["ttft:p50:1.5", "itl:p50:0.05"]
    assert made.conditions["rate_multiplier"] == 1.5
    assert 384 in made.space["budgets_tokens"] and 256 in made.space["budgets_tokens"]
    assert made.conditions["link"]["bytes_per_s"] == [1e10]
    assert (made.traffic_id, made.calibration_id) == (row.traffic_id, row.calibration_id)


def test_who_may_look_may_ask_and_only_members_make_plans(
    viewer_client, outsider_client, row, viewer, bearer
) -> None:
    assert viewer_client.post(url(row, "what_if_move"), {}).status_code == 200
    assert "Make a plan of it" not in viewer_client.get(url(row)).content.decode()
    assert viewer_client.post(url(row, "what_if_save"), {}).status_code == 403
    for name in ("what_if", "what_if_move", "what_if_neighbours", "what_if_save"):
        assert outsider_client.post(url(row, name), {}).status_code == 404
    assert ask(Client(headers=bearer(viewer)), row).status_code == 200
    assert ask(Client(headers=bearer(viewer, "read")), row).status_code == 403


def test_a_plan_of_other_step_times_says_that_it_may_not_start_where_it_stands(
    owner_client, api, row
) -> None:
    assert ask(api, row).json()["remarks"] == []
    inputs = row.result["inputs"] | {"step_time_sha256": "0" * 64}
    Plan.objects.filter(pk=row.pk).update(result=row.result | {"inputs": inputs}, finished_at=timezone.now())
    [remark] = ask(api, row).json()["remarks"]
    assert "may differ from its own" in remark
    assert remark in owner_client.get(url(row)).content.decode()


def test_a_plan_without_an_answer_cannot_be_moved(api, owner_client, make_plan) -> None:
    for status in ("queued", "running", "failed"):
        waiting = make_plan(status=status)
        assert owner_client.get(url(waiting)).status_code == 404
        answer = ask(api, waiting)
        assert answer.status_code == 409
    assert ask(api, Plan(pk=uuid.uuid4())).status_code == 404


@pytest.mark.parametrize(("error", "status"), [(Overtaken(), 409), (Busy(), 429)])
def test_overtaken_and_busy_say_so(error, status, monkeypatch, api, owner_client, row) -> None:
    def refuse(*_):
        raise error

    monkeypatch.setattr(what_if_views, "answer", refuse)
    monkeypatch.setattr("planner.what_if_api.answer", refuse)
    answer = ask(api, row)
    assert answer.status_code == status
    assert answer.json()["detail"] == str(error)
    move = owner_client.post(url(row, "what_if_move"), {})
    assert move.status_code == status
    assert str(error) in move.content.decode()
    assert ("Retry-After" in move.headers) == (status == 429)
    assert owner_client.post(url(row), {}).status_code == status


def test_it_is_limited(settings, owner_client, api, row, monkeypatch) -> None:
    settings.RATE_LIMITS_ENABLED = True
    monkeypatch.setattr(limits, "WHAT_IF", limits.Limit("what-if", 2, 0.001))
    statuses = [owner_client.post(url(row, "what_if_move"), {}).status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert ask(api, row).status_code == 429


def test_names_are_text(owner_client, row) -> None:
    Plan.objects.filter(pk=row.pk).update(name=NASTY)
    page = owner_client.get(url(row)).content.decode()
    assert NASTY not in page


def test_the_plans_page_leads_here(owner_client, row) -> None:
    assert url(row) in owner_client.get(reverse("planner:plan_detail", args=[row.pk])).content.decode()
