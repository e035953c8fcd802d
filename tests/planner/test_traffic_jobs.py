"""What would take long is a worker's: shaping, generating, fitting above the stated size, with the same result."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from django.core.management import call_command
from django.urls import reverse

from calibration import jobs
from calibration.jobs import Job
from planner import services, traffic_work
from planner.models import TrafficJob, TrafficSet
from planner.traffic import PRESETS, Traffic
from planner.traffic.identity import arrays_sha256

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]
HALF = [{"op": "thin", "share": 0.5}]
MODEL = {
    "arrivals": {"kind": "gamma", "rate_per_s": 2.0, "cv": 2.0},
    "lengths": {
        "kind": "lognormal", "prompt_median_tokens": 200.0, "prompt_sigma": 1.0, "prompt_largest_tokens": 4000,
        "output_median_tokens": 50.0, "output_sigma": 1.0, "output_largest_tokens": 900,
    },
}  # fmt: skip


@pytest.fixture
def everything_is_large(settings: Any) -> None:
    settings.IMMEDIATE_TRAFFIC_S = 0.0
    settings.IMMEDIATE_FIT_REQUESTS = 100


@pytest.fixture
def steady(project, owner) -> TrafficSet:
    rng = np.random.default_rng(5)
    arrival_s = np.cumsum(rng.exponential(0.5, 900))
    made = Traffic(
        arrival_s - arrival_s[0], rng.integers(1, 900, 900), rng.integers(1, 90, 900), "steady", "columns"
    )
    return services.create_traffic(project, owner, "steady", made)


def worked(row: TrafficJob) -> TrafficJob:
    jobs.run(TrafficJob, str(row.pk), traffic_work.work)
    row.refresh_from_db()
    return row


def send(client: Any, path: str, body: dict[str, Any]) -> Any:
    return client.post(f"/api/v1/{path}", body, content_type="application/json")


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [("traffic/{}/shape", {"operations": HALF, "seed": 3}, "shape"),
     ("traffic/generate", {"model": MODEL, "requests": 300, "seed": 4}, "generate"),
     ("traffic/synthesise", {"preset": "demo", "requests": 77, "seed": 5}, "synthesise")],
)  # fmt: skip
def test_a_worker_makes_what_a_request_would_have_made(
    path, body, kind, steady, owner, owner_client, bearer, settings
) -> None:
    owner_client.defaults |= {"HTTP_AUTHORIZATION": bearer(owner)["Authorization"]}
    at_once = send(owner_client, path.format(steady.pk), body)
    assert at_once.status_code == 201, at_once.content
    settings.IMMEDIATE_TRAFFIC_S = 0.0
    answer = send(owner_client, path.format(steady.pk), body)
    assert answer.status_code == 202, answer.content
    said = answer.json()
    assert (said["status"], said["kind"], said["traffic"]) == ("queued", kind, None)
    row = worked(TrafficJob.objects.get(pk=said["id"]))
    said = owner_client.get(f"/api/v1/traffic/jobs/{row.pk}").json()
    assert said["status"] == "done", said
    first = TrafficSet.objects.get(pk=at_once.json()["id"])
    second = TrafficSet.objects.get(pk=said["traffic"])
    assert second.name == f"{first.name} (2)", "nobody chose it"
    assert arrays_sha256(services.traffic_of(first)) == arrays_sha256(services.traffic_of(second))


@pytest.mark.usefixtures("everything_is_large")
def test_the_pages_go_to_the_job_and_from_there_to_the_traffic(steady, owner_client) -> None:
    shaping = reverse("planner:traffic_shape", args=[steady.pk])
    preview = owner_client.post(
        reverse("planner:traffic_shape_preview", args=[steady.pk]), {"op-0-op": "thin", "op-0-share": "0.5"}
    )
    assert "too large to try it out" in preview.content.decode()
    answer = owner_client.post(shaping, {"op-0-op": "thin", "op-0-share": "0.5", "name": "half of it"})
    row = TrafficJob.objects.get()
    assert answer.headers["Location"] == reverse("planner:traffic_job", args=[row.pk])
    assert "half of it" in owner_client.get(reverse("planner:traffic_list")).content.decode()
    assert owner_client.get(reverse("planner:traffic_job_status", args=[row.pk])).status_code == 200
    worked(row)
    assert owner_client.get(reverse("planner:traffic_job_status", args=[row.pk])).status_code == 286
    page = owner_client.get(reverse("planner:traffic_job", args=[row.pk])).content.decode()
    assert reverse("planner:traffic_detail", args=[row.traffic_id]) in page
    assert "Making" not in page


@pytest.mark.usefixtures("everything_is_large")
def test_a_fit_is_made_once_and_found_again(steady, owner, owner_client, bearer, settings) -> None:
    page = reverse("planner:traffic_fit", args=[steady.pk])
    assert "A worker fits it" in owner_client.get(page).content.decode()
    owner_client.defaults |= {"HTTP_AUTHORIZATION": bearer(owner)["Authorization"]}
    assert owner_client.get(f"/api/v1/traffic/{steady.pk}/fit").status_code == 409
    started = send(owner_client, f"traffic/{steady.pk}/fit", {})
    assert started.status_code == 202, started.content
    row = worked(TrafficJob.objects.get(pk=started.json()["id"]))
    assert (row.status, row.traffic) == (Job.DONE, None)
    found = owner_client.get(f"/api/v1/traffic/{steady.pk}/fit")
    assert found.status_code == 200
    assert send(owner_client, f"traffic/{steady.pk}/fit", {}).json() == found.json()
    shown = owner_client.get(page)
    assert "The held-out half and the model" in shown.content.decode()
    for figure in shown.context["figures"]:
        drawing = owner_client.get(figure["url"])
        assert drawing.status_code == 200 and drawing.json()["data"], figure
    settings.IMMEDIATE_FIT_REQUESTS = 10_000
    assert owner_client.get(f"/api/v1/traffic/{steady.pk}/fit").json() == found.json()
    out = io.StringIO()
    call_command("fit", str(steady.pk), json=True, user="owner", stdout=out)
    assert json.loads(out.getvalue().splitlines()[-1]) == found.json() | {"traffic": str(steady.pk)}


@pytest.mark.usefixtures("everything_is_large")
def test_what_cannot_be_done_is_said_by_field(steady, owner_client) -> None:
    operations = [{"op": "window", "from_s": 1e6, "to_s": 2e6}]
    row = traffic_work.start("shape", steady.project, steady.owner, "none",
                             {"name": "none", "seed": 0, "operations": operations}, parent=steady)  # fmt: skip
    worked(row)
    assert row.status == Job.FAILED
    assert row.problems[0]["field"].startswith("operations.0.")
    page = owner_client.get(reverse("planner:traffic_job", args=[row.pk])).content.decode()
    assert row.problems[0]["message"] in page
    assert not TrafficSet.objects.filter(name="none").exists()


def test_a_job_is_cancelled_between_two_steps_and_stores_nothing(steady, monkeypatch) -> None:
    row = traffic_work.start("shape", steady.project, steady.owner, "half",
                             {"name": "half", "seed": 0, "operations": HALF * 3}, parent=steady)  # fmt: skip
    seen: list[int] = []

    def progress(self: Any, done: int, total: int, message: str, eta_s: Any = None) -> None:
        seen.append(done)
        if done == 2:
            jobs.request_cancel(row)
            self._polled_s = -1e9

    monkeypatch.setattr(jobs.JobRun, "progress", progress)
    assert worked(row).status == Job.CANCELLED
    assert seen == [0, 1, 2]
    assert not TrafficSet.objects.filter(name="half").exists()


def test_a_job_that_was_taken_away_stores_nothing(steady, monkeypatch) -> None:
    """Its worker was taken for dead while it still worked: what it would store, the next run stores."""
    row = traffic_work.start("shape", steady.project, steady.owner, "half",
                             {"name": "half", "seed": 0, "operations": HALF}, parent=steady)  # fmt: skip
    monkeypatch.setattr(jobs.JobRun, "check", lambda self: None)
    monkeypatch.setattr(
        jobs.JobRun, "write_log", lambda self, line: TrafficJob.objects.filter(pk=row.pk).interrupt()
    )
    assert worked(row).status == Job.INTERRUPTED
    assert row.traffic is None and not TrafficSet.objects.filter(name="half").exists()


def test_large_is_what_takes_longer_than_a_second(settings: Any) -> None:
    """Also where a preset's prompts have very many blocks, which the number of requests does not show."""
    from planner.forms import SynthesiseForm

    def deferred(preset: str, requests: int) -> bool:
        form = SynthesiseForm({"preset": preset, "requests": str(requests)}, defer=True)
        assert form.is_valid(), form.errors
        return form.deferred

    assert settings.IMMEDIATE_TRAFFIC_S == 1.0
    assert not deferred("chat", 20_000) and not deferred("conversation", 2_000)
    assert deferred("conversation", 100_000)
    assert all(not deferred(name, preset.requests) for name, preset in PRESETS.items())
