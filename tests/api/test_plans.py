"""Traffic and plans through the API."""

from __future__ import annotations

import gzip
import json
import uuid

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from calibration.models import Calibration
from planner.models import Plan, TrafficSet
from planner.traffic import PRESETS, statistics, synthesise

TRAFFIC, PLANS = "/api/v1/traffic", "/api/v1/plans"
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319569,3180,8
2023-11-16 18:17:04.0787570,110,27
"""


@pytest.fixture
def api(owner, bearer, no_broker) -> Client:
    return Client(headers=bearer(owner))


def post(client, url, data=None):
    return client.post(url, json.dumps(data or {}), content_type="application/json")


def errors(answer) -> dict[str, str]:
    assert answer.status_code == 422, answer.content
    return {error["field"]: error["message"] for error in answer.json()["errors"]}


# Traffic -----------------------------------------------------------------------------------------------------


def test_presets_say_what_they_are(api):
    presets = api.get(f"{TRAFFIC}/presets").json()
    assert [preset["key"] for preset in presets] == list(PRESETS)
    assert presets[0]["prompt_median_tokens"] == PRESETS["chat"].prompt.median_tokens


def test_synthetic_traffic_is_that_of_the_same_seed_anywhere(api):
    answer = post(
        api, f"{TRAFFIC}/synthesise", {"preset": "chat", "requests": 200, "seed": 3, "rate_per_s": 2}
    )
    assert answer.status_code == 201, answer.content
    body = answer.json()
    figures = statistics(synthesise("chat", requests=200, seed=3, rate_per_s=2.0))
    assert {**body["statistics"], "warnings": body["warnings"]} == figures | {
        "prefix_hit_rate": None, "block_tokens": None, "classes": None,
    }  # fmt: skip
    assert body["recipe"]["seed"] == 3
    assert api.get(f"{TRAFFIC}/{body['id']}").json() == body
    assert api.get(TRAFFIC).json() == {"items": [body], "count": 1}


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_is_uploaded(api, packed):
    content = gzip.compress(AZURE.encode(), mtime=0) if packed else AZURE.encode()
    file = SimpleUploadedFile("azure.csv.gz" if packed else "azure.csv", content)
    answer = api.post(TRAFFIC, {"file": file, "name": "mine"})
    assert answer.status_code == 201, answer.content
    body = answer.json()
    assert (body["name"], body["statistics"]["rows"], body["statistics"]["prompt_tokens"]["max"]) == (
        "mine",
        3,
        4808,
    )


def test_a_bad_trace_is_refused_with_its_lines(api):
    file = SimpleUploadedFile("azure.csv", (AZURE + "2023-11-16 18:17:05,abc,5\n").encode())
    assert "5" in errors(api.post(TRAFFIC, {"file": file}))["file"]
    assert not TrafficSet.objects.exists()


@pytest.mark.parametrize(
    ("payload", "field"),
    [({}, "preset"), ({"preset": "odd"}, "preset"), ({"preset": "chat", "requests": 0}, "requests"),
     ({"preset": "chat", "rate_per_s": 0}, "rate_per_s"), ({"preset": "chat", "rate_per_s": "2"}, "rate_per_s"),
     ({"preset": "chat", "seed": 2**31}, "seed")],
)  # fmt: skip
def test_bad_synthesis_is_named(api, payload, field):
    assert set(errors(post(api, f"{TRAFFIC}/synthesise", payload))) == {field}


# Plans -------------------------------------------------------------------------------------------------------


@pytest.fixture
def question(published, traffic) -> dict:
    return {"calibration": str(published.pk), "traffic": str(traffic.pk), "objectives": ["ttft:p95:1.0"]}


def test_starting_writes_the_row_and_sends_the_job(
    api, question, no_broker, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        answer = post(
            api, PLANS, {**question, "name": "first", "max_replicas": 3, "budgets_tokens": [256, 512]}
        )
    assert answer.status_code == 202, answer.content
    body = answer.json()
    row = Plan.objects.get()
    assert (body["id"], body["status"], body["project"]) == (str(row.pk), "queued", "ridge")
    assert row.objectives == ["ttft:p95:1"]
    assert (row.space["max_replicas"], row.space["budgets_tokens"]) == (3, [256, 512])
    assert no_broker == [("planner.tasks.run_plan", str(row.pk))]
    assert body["result"] is None
    assert api.get(f"{PLANS}/{row.pk}/candidates").status_code == 409


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"objectives": []}, "objectives"),
        ({"objectives": ["ttft:p95"]}, "objectives"),
        ({"objectives": ["speed:p95:1"]}, "objectives"),
        ({"objectives": "ttft:p95:1"}, "objectives"),
        ({"objectives": [1]}, "objectives.0"),
        ({"max_replicas": 0}, "max_replicas"),
        ({"budgets_tokens": [0]}, "budgets_tokens"),
        ({"budgets_tokens": ["256"]}, "budgets_tokens.0"),
        ({"max_num_seqs": [8, 8]}, "max_num_seqs"),
        ({"scheduling": "odd"}, "scheduling"),
        ({"calibration": str(uuid.uuid4())}, "calibration"),
        ({"traffic": "nonsense"}, "traffic"),
    ],
)
def test_bad_questions_are_named_and_start_nothing(api, question, change, field):
    assert set(errors(post(api, PLANS, {**question, **change}))) == {field}
    assert not Plan.objects.exists()


def test_a_plan_rests_on_a_published_calibration_only(api, question, calibration):
    rows = Calibration.objects.filter(pk=question["calibration"])
    rows.update(published=False, reason="The held-out median is 9 %.")
    assert errors(post(api, PLANS, question)) == {
        "calibration": f"The calibration {rows.get().name} is not published, so no plan can rest on it: "
        "The held-out median is 9 %."
    }
    rows.update(published=None, reason="", status="queued")
    assert errors(post(api, PLANS, question))["calibration"].endswith("it is queued.")
    unknown = {"calibration": "There is no such calibration among yours."}
    assert errors(post(api, PLANS, question | {"calibration": str(uuid.uuid4())})) == unknown


def test_a_viewer_may_look_but_not_ask(viewer, bearer, question, finished_plan, no_broker):
    client = Client(headers=bearer(viewer))
    assert client.get(f"{PLANS}/{finished_plan.pk}").status_code == 200
    for url, data in ((PLANS, question), (f"{PLANS}/{finished_plan.pk}/rerun", {}),
                      (f"{PLANS}/{finished_plan.pk}/cancel", {})):  # fmt: skip
        assert post(client, url, data).status_code == 403
    assert Plan.objects.count() == 1


def test_a_finished_plan_answers_with_what_was_stored(api, finished_plan, plan_result):
    body = api.get(f"{PLANS}/{finished_plan.pk}").json()
    assert body["sentence"] == plan_result["verdict"]["sentence"]
    for part in ("verdict", "summary", "trade", "excluded", "inputs", "content_hash"):
        assert body["result"][part] == plan_result[part]


def test_every_candidate_has_its_row(api, finished_plan, plan_result):
    url = f"{PLANS}/{finished_plan.pk}/candidates"
    page = api.get(url).json()
    assert page == {"items": plan_result["candidates"], "count": len(plan_result["candidates"])}
    meets = api.get(f"{url}?status=meets&limit=1").json()
    assert meets["count"] == sum(c["status"] == "meets" for c in plan_result["candidates"])
    assert len(meets["items"]) <= 1


def test_the_list_filters(api, finished_plan):
    assert api.get(f"{PLANS}?feasible=true").json()["count"] == int(finished_plan.feasible)
    assert api.get(f"{PLANS}?calibration={finished_plan.calibration_id}").json()["count"] == 1
    assert api.get(f"{PLANS}?traffic={uuid.uuid4()}").json()["count"] == 0
    assert "result" not in api.get(PLANS).json()["items"][0]


def test_plans_that_could_not_be_judged_are_told_apart(api, finished_plan):
    assert api.get(f"{PLANS}?unjudged=true").json()["count"] == 0
    assert api.get(f"{PLANS}?unjudged=false").json()["items"][0]["unjudged"] is False
    rows = Plan.objects.filter(pk=finished_plan.pk)
    rows.update(feasible=None, sentence="")
    assert api.get(f"{PLANS}?unjudged=false").json()["count"] == 1, "it is at it"
    rows.update(feasible=False, sentence="Nothing can be recommended: it left the measured region.")
    assert [item["unjudged"] for item in api.get(f"{PLANS}?unjudged=true").json()["items"]] == [True]
    assert api.get(f"{PLANS}?unjudged=false").json()["count"] == 0
    rows.update(sentence="No configuration meets this: it is too slow.")
    assert api.get(f"{PLANS}?feasible=false&unjudged=false").json()["count"] == 1


@pytest.mark.parametrize("address", ["plans", "traffic", "calibrations", "schedules", "verifications"])
def test_a_list_of_what_is_not_there_is_refused(api, address, finished_plan):
    """An empty list would say that there is such a project, and nothing in it."""
    found = errors(api.get(f"/api/v1/{address}?project=nope"))
    assert found == {"project": "You have no project with this slug."}
    assert api.get(f"/api/v1/{address}?project={finished_plan.project.slug}").status_code == 200


def test_a_plan_is_cancelled_once_and_run_again_once_it_has_ended(api, finished_plan):
    url = f"{PLANS}/{finished_plan.pk}"
    assert post(api, f"{url}/cancel").status_code == 409
    again = post(api, f"{url}/rerun")
    assert again.status_code == 202
    assert again.json()["rerun_of"] == str(finished_plan.pk)
    new = f"{PLANS}/{again.json()['id']}"
    assert post(api, f"{new}/rerun").status_code == 409
    assert post(api, f"{new}/cancel").json()["status"] == "cancelled"
