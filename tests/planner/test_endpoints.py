"""A plan held against a running server: form, page and API, the job against servers that behave and that do not, and
where the API key is and is not."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import time
import uuid

import numpy as np
import pytest
from aiohttp import web
from django.core import serializers
from django.test import Client
from django.urls import reverse

from accounts.models import ApiToken
from calibration import jobs
from calibration.jobs import Job
from calibration.models import Calibration
from calibration.steptime import StepSample, fit
from planner import endpoint_keys, endpoint_work, tasks
from planner.models import Plan, Verification
from planner.pool_models import PoolModels
from planner.verification_forms import EndpointForm
from planner.verification_subject import paced, predict, subject_of
from planner.verifications import Asked, cancel, rerun, start_verification, why_no_rerun, why_not_endpoint
from tests.planner.verification.servers import DONE, event, honest, serving, stream

pytestmark = pytest.mark.django_db
KEY = "sk-kestrel-7f3a"


@pytest.fixture(autouse=True)
def loopback_may_be_asked(settings, tmp_path):
    settings.OUTBOUND_NETWORKS = ["127.0.0.0/8"]
    settings.DATA_DIR = tmp_path


def asked(url: str, api_key: str = "", **more) -> Asked:
    options = {"base_url": url, "model": "tiny", "vocabulary": 4_000, "replicas": 1, "load": 1.5}
    return Asked(50, kind=Verification.ENDPOINT, options=options | more, api_key=api_key)


def verified(handler, plan, owner, **more) -> Verification:
    with serving(handler) as url:
        row = start_verification(plan, owner, asked(url, **more))
        jobs.run(Verification, str(row.pk), endpoint_work.verify_endpoint)
    row.refresh_from_db()
    return row


async def behaves(request, body):
    return await stream(request, honest(body), 0.001)


def test_a_server_is_sent_the_window_and_compared(
    finished_plan, owner, no_broker, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        row = verified(behaves, finished_plan, owner)
    assert row.status == Job.DONE, row.error
    result = row.result
    assert (result["requests"], result["failed"], result["measured"]["answered"]) == (50, 0, 50)
    assert {line["metric"] for line in result["lines"]} == {"ttft", "itl", "tpot", "e2e"}
    for line in result["lines"]:
        assert line["predicted_low_s"] <= line["predicted_s"] <= line["predicted_high_s"]
        assert line["measured_low_s"] <= line["measured_s"] <= line["measured_high_s"]
    assert result["measured"]["lag"]["p100"] >= 0
    assert row.sentence == result["sentence"]
    assert result["curves"]["itl"]["measured_s"]
    assert no_broker == [("planner.tasks.run_endpoint", str(row.pk))]


def test_what_each_request_saw_is_kept_and_handed_out(finished_plan, owner, no_broker, owner_client):
    asked_for = []

    async def now_and_then(request, body):
        asked_for.append(1)
        if len(asked_for) % 10 == 3:
            return web.json_response({"error": {"message": "slow down"}}, status=429)
        return await behaves(request, body)

    row = verified(now_and_then, finished_plan, owner)
    told = owner_client.get(f"/api/v1/verifications/{row.pk}/requests?limit=200").json()
    assert told["count"] == len(told["items"]) == row.result["requests"] == 50
    assert [each["request"] for each in told["items"]] == list(range(50))
    failed = [each for each in told["items"] if each["error"]]
    assert len(failed) == row.result["failed"] and {each["status"] for each in failed} == {429}
    assert {each["ttft_s"] for each in failed} == {None}
    good = [each for each in told["items"] if not each["error"]]
    assert all(each["tokens"] == each["asked_tokens"] and each["lag_s"] >= 0 for each in good)
    p50 = next(line["measured_s"] for line in row.result["lines"] if line["label"] == "TTFT p50")
    assert np.median([each["ttft_s"] for each in good]) == pytest.approx(p50, abs=1e-6)
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "Requests, CSV" in page
    csv = owner_client.get(reverse("planner:verification_requests", args=[row.pk])).content.decode()
    assert len(csv.splitlines()) == 51 and csv.startswith("request,due_s,lag_s,ttft_s,")


@pytest.mark.parametrize("replicas", [1, 2])
def test_asked_to_stop_it_tells_what_was_answered_and_blames_nobody(
    finished_plan, owner, no_broker, owner_client, monkeypatch, replicas
):
    answered = []

    async def counts(request, body):
        reply = await behaves(request, body)
        answered.append(1)
        return reply

    monkeypatch.setattr(jobs.JobRun, "should_stop", lambda self: len(answered) >= 3)
    row = verified(counts, finished_plan, owner, replicas=replicas)
    result = row.result
    assert (row.status, row.holds) == (Job.CANCELLED, None)
    assert 3 <= result["partial"]["finished"] == result["measured"]["answered"] < result["requests"]
    assert (result["failed"], result["measured"]["errors"]) == (0, {})
    assert row.sentence == (
        f"The run was stopped when {result['partial']['finished']} of {result['requests']} requests were answered."
    )
    assert {line["bar"] for line in result["lines"]} == {None}, "nothing is judged"
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "stopped" in page and "does not serve" not in page and "not as predicted" not in page


@pytest.mark.parametrize(
    ("device", "kind", "p95", "p99"), [("cpu", "cpu", 0.15, 0.2), ("NVIDIA H200", "gpu", 0.1, 0.15)]
)
def test_a_server_is_held_to_the_bars_of_the_device_that_was_calibrated(
    finished_plan, owner, no_broker, owner_client, device, kind, p95, p99
):
    Calibration.objects.filter(pk=finished_plan.calibration_id).update(device=device, environment=None)
    row = verified(behaves, Plan.objects.get(pk=finished_plan.pk), owner)
    bars = {(line["metric"], line["percentile"]): line["bar"] for line in row.result["lines"]}
    assert [bars["ttft", 50.0], bars["ttft", 95.0], bars["itl", 95.0], bars["itl", 99.0]] == [
        p95,
        p95,
        p95,
        p99,
    ]
    assert [bars["ttft", 99.0], bars["e2e", 50.0], bars["tpot", 50.0]] == [None] * 3
    assert row.result["device_kind"] == kind
    assert row.result["bars"] == f"{p95:.0%} up to p95, {p99:.0%} at p99".replace("%", "\u00a0%")
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert (
        f"Bars: of a {kind.upper()}, {row.result['bars']}, because the step times are of {row.result['device']}"
        in page
    )
    told = owner_client.get(f"/api/v1/verifications/{row.pk}").json()["result"]
    assert (told["device_kind"], told["device"]) == (kind, row.result["device"])


def on_two(plan, kind, **second) -> Plan:
    """The plan with its choice on this kind of hardware; the second is `second`."""
    other = Calibration.objects.get(pk=plan.calibration_id)
    other.pk, other.name = uuid.uuid4(), "the other"
    for name, value in second.items():
        setattr(other, name, value)
    other.save(force_insert=True)
    result = copy.deepcopy(plan.result)
    result["verdict"]["choice"]["kind"] = kind
    result["inputs"]["hardware"] = [
        {"device": "cpu", "gpus_per_replica": 1},
        {"device": "H200", "gpus_per_replica": 1},
    ]
    Plan.objects.filter(pk=plan.pk).update(second_calibration=other, result=result)
    return Plan.objects.get(pk=plan.pk)


def test_of_a_plan_on_its_second_hardware_that_ones_step_times_and_bars_count(
    finished_plan, owner, no_broker, fitted_samples
):
    first = verified(behaves, finished_plan, owner)
    slow = [StepSample(s.shape, tuple(5 * v for v in s.seconds), s.role) for s in fitted_samples]
    result = finished_plan.calibration.result | {"model": fit(slow, seed=0, bootstrap=2).to_dict()}
    row = verified(
        behaves, on_two(finished_plan, 1, device="NVIDIA H200", environment=None, result=result), owner
    )
    assert (first.result["device_kind"], row.result["device_kind"]) == ("cpu", "gpu")
    assert row.result["device"] == "NVIDIA H200"
    tpot = [
        next(x for x in r.result["lines"] if x["label"] == "TPOT p50")["predicted_s"] for r in (first, row)
    ]
    assert tpot[1] > 3 * tpot[0]


def test_of_pools_on_two_kinds_of_hardware_each_is_predicted_with_its_own_step_times(
    pools_on_two, owner, no_broker
):
    plan, second = pools_on_two
    assert why_not_endpoint(plan) == ""
    row = verified(behaves, plan, owner)
    assert row.status == Job.DONE, row.error
    assert row.result["device_kind"] == "gpu", "of both the tighter bars"
    assert (
        second.device_label in row.result["device"] and plan.calibration.device_label in row.result["device"]
    )
    steps = PoolModels.of(plan).steps
    outcome = predict(paced(subject_of(plan, 50), 1.5, steps)[0], steps)
    assert not np.array_equal(steps.prefill.theta, steps.decode.theta)
    for line in row.result["lines"]:
        assert line["predicted_s"] == outcome.percentile(line["metric"], line["percentile"])


async def refuses(request, body):
    return web.json_response({"error": {"message": "slow down"}}, status=429)


async def breaks(request, body):
    return web.Response(text="no", status=500)


async def stalls(request, body):
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await reply.prepare(request)
    await reply.write(event("x", 1))
    await asyncio.sleep(3)
    return reply


@pytest.mark.parametrize(
    ("handler", "reason"),
    [(refuses, "HTTP 429: slow down"), (breaks, "HTTP 500: no"), (stalls, "silent for 0.5 s")],
)
def test_a_server_that_fails_its_requests_does_not_hold_and_says_how(
    finished_plan, owner, no_broker, handler, reason
):
    silence = {"silence_s": 0.5} if handler is stalls else {}  # nobody else may be taken for silent
    row = verified(handler, finished_plan, owner, **silence)
    assert (row.status, row.holds) == (Job.DONE, False), row.error
    assert row.result["measured"]["errors"] == {reason: 50}
    assert row.result["lines"] == []
    assert "50 of 50 requests failed, all with" in row.sentence
    assert reason in row.sentence


async def lumps(request, body):
    asked_for = body["max_tokens"]
    return await stream(request, [event("all", asked_for), DONE])


async def lies(request, body):
    return await stream(request, [event("x")] * 8 + [event("", 2, "stop"), DONE])


@pytest.mark.parametrize(
    ("handler", "doubt"), [(lumps, "several tokens"), (lies, "fewer tokens than they had chunks")]
)
def test_what_a_stream_does_not_show_is_withheld_or_doubted(finished_plan, owner, no_broker, handler, doubt):
    row = verified(handler, finished_plan, owner)
    assert row.status == Job.DONE, row.error
    assert any(doubt in advice for advice in row.result["advice"])
    if handler is lumps:
        assert "itl" not in {line["metric"] for line in row.result["lines"]}


def test_the_key_is_for_one_job_and_in_no_row(finished_plan, owner, no_broker):
    seen = []

    async def handler(request, body):
        seen.append(request.headers.get("Authorization"))
        return await behaves(request, body)

    with serving(handler) as url:
        row = start_verification(finished_plan, owner, asked(url, KEY))
        held = endpoint_keys.folder() / row.pk.hex
        assert (held.read_text(), held.stat().st_mode & 0o777) == (KEY, 0o600)
        assert endpoint_keys.folder().stat().st_mode & 0o777 == 0o700
        jobs.run(Verification, str(row.pk), endpoint_work.verify_endpoint)
    row.refresh_from_db()
    assert set(seen) == {f"Bearer {KEY}"}
    assert not held.exists()
    assert KEY not in serializers.serialize("json", Verification.objects.all())
    assert not any(KEY in part for message in no_broker for part in message)
    assert "keys are not kept" in why_no_rerun(row)
    again = rerun(row, owner)  # however it came about
    jobs.run(Verification, str(again.pk), endpoint_work.verify_endpoint)
    again.refresh_from_db()
    assert again.status == Job.FAILED
    assert "key is gone" in again.error


def test_the_same_posted_again_is_the_one_at_work_and_another_key_is_another(finished_plan, owner, no_broker):
    first = start_verification(finished_plan, owner, asked("http://127.0.0.1:9", KEY))
    assert start_verification(finished_plan, owner, asked("http://127.0.0.1:9", KEY)) == first
    endpoint_keys.take(first.pk)  # its job has begun
    assert start_verification(finished_plan, owner, asked("http://127.0.0.1:9", KEY)) == first
    others = [
        start_verification(finished_plan, owner, asked("http://127.0.0.1:9", key)) for key in ("sk-other", "")
    ]
    assert len({first.pk, *(row.pk for row in others)}) == 3
    assert endpoint_keys.take(others[0].pk) == "sk-other" and endpoint_keys.take(others[1].pk) is None
    assert KEY not in serializers.serialize("json", Verification.objects.all())
    second = start_verification(finished_plan, owner, asked("http://127.0.0.1:8", KEY))
    assert second.options["keyed"] != first.options["keyed"], "which jobs had the same key stands nowhere"


def test_a_job_that_never_begins_leaves_no_key(finished_plan, owner, no_broker):
    first, second = (
        start_verification(finished_plan, owner, asked("http://127.0.0.1:9", KEY, model=model))
        for model in ("tiny", "small")
    )
    assert cancel(first)
    assert not (endpoint_keys.folder() / first.pk.hex).exists()
    path = endpoint_keys.folder() / second.pk.hex
    endpoint_keys.sweep()
    assert path.exists()
    os.utime(path, (0, time.time() - endpoint_keys.KEPT_S - 1))
    tasks.sweep_verifications()
    assert not path.exists()


def test_an_address_that_may_not_be_asked_fails_the_job_before_anything_is_sent(
    finished_plan, owner, no_broker, settings
):
    settings.OUTBOUND_NETWORKS = []

    async def handler(request, body):
        raise AssertionError("nothing may come here")

    row = verified(handler, finished_plan, owner)
    assert row.status == Job.FAILED
    assert "not public" in row.error


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("base_url", "http://10.0.0.1/v1", "OUTBOUND_NETWORKS"),
        ("base_url", "ftp://127.0.0.1/v1", "http://"),
        ("base_url", "http://user:pass@127.0.0.1/v1", "leave names and passwords out"),
        ("base_url", "http://127.0.0.1/v1?key=1", "without ?"),
        ("base_url", "", "required"),
        ("model", "", "required"),
        ("api_key", "two words", "without blanks"),
        ("vocabulary", "3", "greater than or equal to 64"),
        ("requests", "10", "greater than or equal to 50"),
        ("load", "9", "less than or equal to 1.5"),
    ],
)
def test_what_is_wrong_stands_beside_its_field(owner_client, finished_plan, no_broker, field, value, words):
    sent = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", "api_key": KEY} | {field: value}
    page = owner_client.post(reverse("planner:plan_verify_endpoint", args=[finished_plan.pk]), sent)
    assert page.status_code == 422
    assert list(page.context["endpoint"].errors) == [field]
    assert words in str(page.context["endpoint"].errors[field])
    assert KEY not in page.content.decode()
    assert Verification.objects.count() == 0


def test_the_page_starts_it_and_shows_what_came(owner_client, owner, finished_plan, no_broker):
    with serving(behaves) as url:
        answer = owner_client.post(
            reverse("planner:plan_verify_endpoint", args=[finished_plan.pk]),
            {"base_url": url, "model": "tiny", "load": "1.5", "requests": "50"},
        )
        row = Verification.objects.get()
        assert answer.url == reverse("planner:verification_detail", args=[row.pk])
        assert row.options["vocabulary"] == 16_384  # of the planned model
        jobs.run(Verification, str(row.pk), endpoint_work.verify_endpoint)
    page = owner_client.get(answer.url).content.decode()
    assert "What the server did" in page
    assert "Own lag" in page
    assert url in page
    figure = reverse("planner:verification_figure", args=[row.pk, "ttft"])
    assert owner_client.get(figure).json()["table"]["rows"]
    assert owner_client.get(figure.replace("ttft", "residuals")).status_code == 404


def test_the_api_starts_it_and_tells_no_key(owner, bearer, finished_plan, no_broker):
    client = Client(headers=bearer(owner, ApiToken.WRITE))
    url = f"/api/v1/plans/{finished_plan.pk}/verifications/endpoint"
    sent = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", "api_key": KEY}
    answer = client.post(url, sent, content_type="application/json")
    assert answer.status_code == 202, answer.content
    assert KEY not in answer.content.decode()
    assert (answer.json()["kind"], answer.json()["base_url"]) == ("endpoint", sent["base_url"])
    refused = client.post(url, sent | {"base_url": "http://10.0.0.1"}, content_type="application/json")
    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["base_url"]
    assert KEY not in refused.content.decode()
    pk = answer.json()["id"]
    assert (
        client.post(f"/api/v1/verifications/{pk}/cancel", {}, content_type="application/json").status_code
        == 202
    )
    again = client.post(f"/api/v1/verifications/{pk}/rerun", {}, content_type="application/json")
    assert again.status_code == 409
    assert "keys are not kept" in json.loads(again.content)["detail"]


def test_a_key_is_never_written_back_into_the_form(finished_plan):
    form = EndpointForm({"api_key": KEY}, plan=finished_plan)
    assert KEY not in form.as_p()
