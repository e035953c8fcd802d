"""Two clicks are one job: whatever is posted again while it is at work is answered with the one at work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from calibration.jobs import Job
from calibration.models import Calibration, Channel, Device, DriftCheck, Schedule
from config import once
from planner.models import HeldUpload, Plan, TrafficImport, TrafficSet, Verification
from tests.ops.services import PATIENCE_S

STEPS = "prefill_tokens,prefill_context,decode_seqs,decode_context,step_ms\n" + "\n".join(
    f"{n},0,{b},{c},{1 + 0.01 * n + b + 0.001 * c}"
    for n in (0, 64, 256) for b in (1, 2, 4) for c in (100, 400)
)  # fmt: skip

Post = Callable[[Client, str], Any]
#: What is posted (with a seed that may be changed), and the rows that it makes.
KINDS: dict[str, tuple[type[Job], Callable[[Any], str], dict[str, Any]]] = {
    "drift check": (DriftCheck, lambda plan: reverse("calibration:drift", args=[plan.calibration_id]), {}),
    "calibration": (
        Calibration, lambda plan: reverse("calibration:new"),
        {"model": "demo", "device": "cpu", "max_batch": 4, "max_context_tokens": 256, "max_step_tokens": 64,
         "kv_tokens": 4096},
    ),
    "import": (
        Calibration, lambda plan: reverse("calibration:import"),
        {"kind": "steps", "steps-model": "demo", "steps-device": "RTX 4090", "steps-kv_tokens": 4096},
    ),
    "replay": (Verification, lambda plan: reverse("planner:plan_verify", args=[plan.pk]), {"requests": 60}),
    "server": (
        Verification, lambda plan: reverse("planner:plan_verify_endpoint", args=[plan.pk]),
        {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", "api_key": "sk-kestrel"},
    ),
    "mixed load": (
        Verification, lambda plan: reverse("planner:plan_mixed_load", args=[plan.pk]),
        {"prompt_tokens": 200, "output_tokens": 64, "streams": 4},
    ),
}  # fmt: skip


@pytest.fixture
def plan(finished_plan, settings, tmp_path) -> Plan:
    settings.OUTBOUND_NETWORKS, settings.DATA_DIR = ["127.0.0.0/8"], tmp_path
    Calibration.objects.filter(pk=finished_plan.calibration_id).update(
        environment={"dtype": "float32"}, finished_at=timezone.now()
    )
    return Plan.objects.get(pk=finished_plan.pk)


def posted(client: Client, plan: Plan, kind: str, seed: int = 0) -> str:
    """Where the page of what was started is."""
    _, address, fields = KINDS[kind]
    sent = {**fields, "steps-seed" if kind == "import" else "seed": seed}
    if kind == "import":
        sent["steps-file"] = SimpleUploadedFile("steps.csv", STEPS.encode())
    answer = client.post(address(plan), sent)
    assert answer.status_code == 302, answer.content[-4000:]
    return str(answer.headers["Location"])


@pytest.mark.django_db
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_again_is_the_one_at_work_and_anything_else_another(
    kind, plan, owner_client, member_client, no_broker
):
    rows = KINDS[kind][0].objects.exclude(pk=plan.calibration_id)
    first = posted(owner_client, plan, kind)
    assert posted(owner_client, plan, kind) == first
    rows.update(status=Job.RUNNING)
    assert posted(owner_client, plan, kind) == first
    assert rows.count() == 1
    assert posted(owner_client, plan, kind, seed=1) != first, "another seed is another question"
    assert posted(member_client, plan, kind) != first, "another's job is another's"
    assert rows.count() == 3
    rows.update(cancel_requested=True)
    second = posted(owner_client, plan, kind)
    assert second != first, "what was asked to stop answers nothing"
    rows.update(status=Job.DONE)
    assert posted(owner_client, plan, kind) not in (first, second), "what has ended is measured anew"
    assert rows.count() == 5


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", KINDS)
def test_at_the_same_moment_they_are_one_job(kind, plan, owner, no_broker):
    """Four threads with connections of their own, as four workers of the web server."""
    gate = Barrier(4)

    def post(_: int) -> str:
        client = Client()
        client.force_login(owner)
        gate.wait(timeout=PATIENCE_S)
        try:
            return posted(client, plan, kind)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(post, range(4)))
    rows = KINDS[kind][0].objects.exclude(pk=plan.calibration_id)
    assert (len(answers), rows.count(), len(no_broker)) == (1, 1, 1)


@pytest.mark.django_db
def test_a_calibration_is_run_again_once(plan, owner_client, no_broker):
    address = reverse("calibration:rerun", args=[plan.calibration_id])
    assert owner_client.post(address).headers["Location"] == owner_client.post(address).headers["Location"]
    assert Calibration.objects.count() == 2


@pytest.mark.django_db
def test_the_api_answers_with_the_one_at_work(plan, owner, bearer, client, no_broker):
    # The pool's size follows from the memory that the device worker found free when it came up.
    Device.objects.create(name="cpu", label="x", hostname="x", total_bytes=2**36, free_bytes=2**35)

    def started(address: str, **sent: Any) -> str:
        answer = client.post(
            f"/api/v1/{address}", sent, content_type="application/json", headers=bearer(owner)
        )
        assert answer.status_code == 202, answer.content
        return str(answer.json()["id"])

    for address, sent in (
        (f"calibrations/{plan.calibration_id}/drift-checks", {"recalibrate": True}),
        (f"plans/{plan.pk}/verifications", {"requests": 60}),
        (f"plans/{plan.pk}/verifications/mixed-load", {"grid": True}),
        ("calibrations", {"model": "demo"}),
    ):
        assert started(address, **sent) == started(address, **sent), address
        assert started(address, **sent) != started(address, **sent, seed=7), address


# Forms that make something at once -------------------------------------------------------------------------------

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(
    f"2023-11-16 18:17:{s:02d}.0000000,{100 + s},{10 + s}" for s in range(30)
)
#: What is posted to where, and the rows that it makes. `name`, or what stands for it, is what a change changes.
AT_ONCE: dict[str, tuple[type[Any], Callable[[Any], str], dict[str, Any]]] = {
    "upload": (TrafficSet, lambda plan: reverse("planner:traffic_new"), {"file": "trace.csv", "keep_file": "on"}),
    "look": (HeldUpload, lambda plan: reverse("planner:traffic_new"), {"file": "trace.csv", "look": "1"}),
    "large": (TrafficImport, lambda plan: reverse("planner:traffic_new"), {"file": "trace.csv"}),
    "synthesise": (TrafficSet, lambda plan: reverse("planner:traffic_synthesise"), {"preset": "demo"}),
    "model": (
        TrafficSet, lambda plan: reverse("planner:traffic_model"),
        {"arrivals-kind": "poisson", "arrivals-rate_per_s": 2, "lengths-kind": "lognormal", "requests": 20,
         **{f"lengths-{of}_{what}": value for of in ("prompt", "output")
            for what, value in (("median_tokens", 9), ("sigma", 0.1), ("largest_tokens", 20))}},
    ),
    "shape": (
        TrafficSet, lambda plan: reverse("planner:traffic_shape", args=[plan.traffic_id]),
        {"op-0-op": "thin", "op-0-share": "0.5"},
    ),
    "channel": (
        Channel, lambda plan: reverse("notifications:list"),
        {"kind": "email", "events": ["drift"], "enabled": "on"},
    ),
    "schedule": (
        Schedule, lambda plan: reverse("calibration:schedule_new"),
        {"action": "check", "every": 1, "unit": "days", "time_zone": "UTC"},
    ),
}  # fmt: skip


def sent_once_more(client: Client, plan: Plan, kind: str, token: str = "t", name: str = "a") -> str:
    """The form as a page sent it; `token`: which page."""
    _, address, fields = AT_ONCE[kind]
    values = {**fields, "csrfmiddlewaretoken": token, "name": name}
    if kind == "channel":
        values["target"] = f"{name}@example.com"
    if kind == "schedule":
        values["calibration"] = plan.calibration_id
    if "file" in fields:
        values["file"] = SimpleUploadedFile("trace.csv", TRACE.encode())
    answer = client.post(address(plan), values)
    assert answer.status_code == (200 if kind == "channel" else 302), answer.content[-4000:]
    return str(answer.headers.get("Location", ""))


@pytest.fixture
def sized(request, settings) -> None:
    if request.node.callspec.params["kind"] == "large":
        settings.IMMEDIATE_IMPORT_BYTES = 50


@pytest.fixture
def said(monkeypatch) -> Callable[[], list[str]]:
    """What pages were told to say since this was last asked."""
    found: list[str] = []
    monkeypatch.setattr(once.messages, "info", lambda request, text: found.append(text))

    def take() -> list[str]:
        taken, found[:] = found[:], []
        return taken

    return take


@pytest.mark.django_db
@pytest.mark.usefixtures("sized", "no_broker")
@pytest.mark.parametrize("kind", AT_ONCE)
def test_a_form_sent_twice_makes_one_thing(kind, plan, owner_client, member_client, said):
    rows = AT_ONCE[kind][0].objects.exclude(pk=plan.traffic_id)
    first = sent_once_more(owner_client, plan, kind)
    assert said() == []
    assert sent_once_more(owner_client, plan, kind) == first
    assert rows.count() == 1
    assert said() == [once.AGAIN], "whoever meant another learns that there is none"
    assert HeldUpload.objects.count() <= 1
    sent_once_more(owner_client, plan, kind, token="u")
    assert rows.count() == 2, "another page, another thing"
    assert said() == []
    sent_once_more(member_client, plan, kind)
    assert rows.count() == 3, "another's"
    sent_once_more(owner_client, plan, kind, name="b")
    assert rows.count() == 4, "the same page with something else in it"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("sized", "no_broker")
@pytest.mark.parametrize("kind", AT_ONCE)
def test_a_form_sent_twice_at_once_makes_one_thing(kind, plan, owner):
    gate = Barrier(3)

    def post(_: int) -> str:
        client = Client()
        client.force_login(owner)
        gate.wait(timeout=PATIENCE_S)
        try:
            return sent_once_more(client, plan, kind)
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as pool:
        answers = set(pool.map(post, range(3)))
    assert (len(answers), AT_ONCE[kind][0].objects.exclude(pk=plan.traffic_id).count()) == (1, 1)
    assert HeldUpload.objects.count() <= 1


@pytest.mark.django_db
def test_a_mapped_file_is_imported_once(plan, owner_client):
    """Its file is gone when the second click comes."""
    held = sent_once_more(owner_client, plan, "look")
    fields = {"name": "trace.csv", "csrfmiddlewaretoken": "v"}
    first, second = (owner_client.post(held, fields) for _ in range(2))
    assert (first.status_code, second.status_code) == (302, 302)
    assert first.headers["Location"] == second.headers["Location"]


@pytest.mark.django_db(transaction=True)
def test_names_that_nobody_chose_are_numbered_also_at_once(plan, owner):
    """Four pages, as four workers of the web server answer them. Only Postgres lets two look before one writes."""
    gate = Barrier(4)

    def post(number: int) -> None:
        client = Client()
        client.force_login(owner)
        gate.wait(timeout=PATIENCE_S)
        try:
            sent_once_more(client, plan, "synthesise", token=f"t{number}", name="")
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(post, range(4)))
    names = TrafficSet.objects.filter(name__startswith="Demo (synthetic)").values_list("name", flat=True)
    assert sorted(names) == [f"Demo (synthetic){n}" for n in ("", " (2)", " (3)", " (4)")]


@pytest.mark.django_db
def test_names_that_nobody_chose_are_numbered(plan, owner_client, no_broker):
    for kind, name in (("synthesise", "Demo (synthetic)"), ("upload", "trace.csv")):
        for token in "abc":
            sent_once_more(owner_client, plan, kind, token=token, name="")
        names = set(TrafficSet.objects.filter(name__startswith=name).values_list("name", flat=True))
        assert names == {name, f"{name} (2)", f"{name} (3)"}
    for seed in (1, 2):
        asked = {
            "calibration": plan.calibration_id,
            "traffic": plan.traffic_id,
            "ttft_percentile": 95,
            "ttft_limit_ms": 1000,
            "seed": seed,
        }
        assert owner_client.post(reverse("planner:plan_new"), asked).status_code == 302
    made = Plan.objects.exclude(pk=plan.pk).order_by("created_at").values_list("name", flat=True)
    assert list(made) == ["demo on demo, published", "demo on demo, published (2)"]
